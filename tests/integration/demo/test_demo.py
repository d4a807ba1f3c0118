"""The demo itself, small: it ends well, and it leaves nothing behind when it is interrupted or killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.variants import gated

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
from pathlib import Path
from airflow_parallel_apply.demo.__main__ import guarded, play_once
from airflow_parallel_apply.demo.settings import DemoSettings
settings = DemoSettings(dags=Path(sys.argv[1]), directory=Path(sys.argv[2]), transactions=200, channels=2)
sys.exit(guarded(lambda: play_once(settings)))
"""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-u", "-c", SCRIPT, str(ROOT / "dags"), str(tmp_path / "demo")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


@gated
def test_it_ends_with_equal_tables_and_leaves_no_process(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    text, _ = demo.communicate(timeout=560)
    assert demo.returncode == 0, text
    assert "every channel stopped at one seqno, and all tables are equal" in text
    assert "up_for_retry" not in text
    assert _left(tmp_path) == []


@pytest.mark.long
def test_interrupted_during_the_run_it_cleans_up_and_leaves_no_process(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    _read_until(demo, "Spark Connect runs")
    demo.send_signal(signal.SIGINT)
    text, _ = demo.communicate(timeout=180)
    assert demo.returncode == 130, text
    assert "everything was cleaned up" in text
    assert _left(tmp_path) == []


@pytest.mark.long
def test_killed_it_leaves_no_process(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    _read_until(demo, "Airflow runs")
    assert len(_left(tmp_path)) > 5
    demo.kill()
    demo.communicate(timeout=180)
    deadline = time.monotonic() + 90  # a Spark server that just started stays for its idle time
    while left := _left(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _read_until(demo: subprocess.Popen[str], words: str) -> None:
    said = []
    for line in demo.stdout or ():
        said.append(line)
        if words in line:
            return
    pytest.fail("".join(said))


def _left(directory: Path) -> list[str]:
    """Living processes that know of the directory, by their arguments or their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes()
            if command and str(directory).encode() in command + (process / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found

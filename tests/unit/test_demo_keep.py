"""One demo at a time, and one that outlives its command until it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.interrupts import Interrupted, ignore_signals, signals_interrupt
from airflow_parallel_apply.demo.keep import only_one, stop_kept
from airflow_parallel_apply.pipeline.errors import ConfigurationError

KEPT = """
import sys
from pathlib import Path
from airflow_parallel_apply.demo.interrupts import Interrupted, signals_interrupt
from airflow_parallel_apply.demo.keep import in_background, only_one, wait_for_the_end
folder = Path(sys.argv[1])

def play(tell):
    with only_one(folder), signals_interrupt():
        try:
            tell(int(sys.argv[2]))
            wait_for_the_end()
        except Interrupted:
            (folder / "cleaned").touch()

sys.exit(in_background(play))
"""

FAILS = """
import sys
from airflow_parallel_apply.demo.keep import in_background

def play(tell):
    raise SystemExit("no")

sys.exit(in_background(play))
"""

INTERRUPTED = """
import os, sys, time
from pathlib import Path
from airflow_parallel_apply.demo.interrupts import Interrupted, signals_interrupt
from airflow_parallel_apply.demo.keep import in_background
folder = Path(sys.argv[1])

def play(tell):
    with signals_interrupt():
        try:
            (folder / "playing").touch()
            time.sleep(600)
        except Interrupted as interrupted:
            (folder / "cleaned").write_text(str(interrupted))
            tell(130)

def fork_slowly(fork=os.fork):
    child = fork()
    time.sleep(0.5 if child else 0)
    return child

if "slowly" in sys.argv:
    os.fork = fork_slowly
sys.exit(in_background(play))
"""


def test_a_second_demo_in_one_directory_is_refused(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(ConfigurationError, match="make demo-stop"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


@pytest.mark.parametrize("code", [0, 1])
def test_a_kept_demo_outlives_its_command_and_cleans_up_when_stopped(tmp_path: Path, code: int) -> None:
    assert _python(KEPT, tmp_path, code).wait() == code
    with pytest.raises(ConfigurationError), only_one(tmp_path):
        pass
    assert stop_kept(tmp_path, timeout=timedelta(seconds=120))
    assert (tmp_path / "cleaned").exists()
    assert not stop_kept(tmp_path, timeout=timedelta(seconds=120))


@pytest.mark.parametrize("told", ["of a process that has ended", ""])
def test_a_demo_that_ends_just_before_its_signal_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with ExitStack() as playing:
        playing.enter_context(only_one(tmp_path))
        (tmp_path / "lock").write_text(told and str(ended.pid))
        monkeypatch.setattr(time, "sleep", lambda _seconds: playing.close())
        assert not stop_kept(tmp_path, timeout=timedelta(seconds=120))


def test_a_kept_demo_that_fails_before_it_tells_ends_its_command_with_1(tmp_path: Path) -> None:
    assert _python(FAILS, tmp_path).wait() == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command_reaches_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    command = _python(INTERRUPTED, tmp_path)
    _until((tmp_path / "playing").exists)
    command.send_signal(number)
    assert command.wait() == 130
    assert (tmp_path / "cleaned").read_text() == number.name


def test_a_signal_that_comes_as_soon_as_the_demo_plays_reaches_it(tmp_path: Path) -> None:
    command = _python(INTERRUPTED, tmp_path, "slowly")
    _until((tmp_path / "playing").exists)
    command.send_signal(signal.SIGTERM)
    assert command.wait() == 130
    assert (tmp_path / "cleaned").read_text() == "SIGTERM"


def test_the_first_signal_interrupts_and_those_during_the_clean_up_do_not() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals_interrupt():
        with pytest.raises(Interrupted, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_clean_up_without_a_signal_before_it_is_not_disturbed_either() -> None:
    with signals_interrupt():
        ignore_signals()
        os.kill(os.getpid(), signal.SIGINT)


def _python(script: str, folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, str(folder), *map(str, arguments)])


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not come true")
        time.sleep(0.02)

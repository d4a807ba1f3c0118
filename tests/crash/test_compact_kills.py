"""A compaction that dies leaves the snapshot before it, or its own; the feed goes on either way."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.compact.open import compact
from airflow_parallel_apply.pipeline.compact.protocol import CompactOptions
from airflow_parallel_apply.pipeline.config import Start
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.snapshots import snapshots
from tests.crash.scene import Scene
from tests.support.rig import execute
from tests.support.variants import gated, variants

DYING = """
import os, signal, sys
from airflow_parallel_apply.cli import main
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
name, when = sys.argv[1:3]
plain = getattr(FilePlace, name)
def dying(self, path, *given):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = plain(self, path, *given)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(FilePlace, name, dying)
sys.argv[1:3] = []
main()
"""

KILLS = {
    "before a file": ("write", "before", False),
    "behind a file": ("write", "after", False),
    "before the manifest": ("publish", "before", False),
    "behind the manifest": ("publish", "after", True),
    "while files are removed": ("remove", "after", True),
}


@pytest.fixture
def fed(scene: Scene, ledger_dsn: str, tmp_path: Path) -> Scene:
    """A directory with two snapshots' worth of changes, and one snapshot."""
    scene.rig = replace(scene.rig, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    scene.rig = scene.rig.having(start=Start.EMPTY, epoch_max_changes=100)
    execute(
        scene.rig.source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE u (id int PRIMARY KEY)"
    )
    scene.rig.prepare()
    for step in range(2):
        scene.rig.write(
            f"INSERT INTO t SELECT i + {step} * 100, 'a' FROM generate_series(1, 100) i",
            f"UPDATE t SET v = v || {step} WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 7 = 0",
        )
        scene.rig.run(f"run {step}")
        if step == 0:
            compact(scene.rig.target, CompactOptions(), log=open_reader(scene.rig.config.log_url))
    return scene


@gated
@pytest.mark.parametrize("place", variants(KILLS, seldom=["before a file", "behind a file", "while files are removed"]))
def test_a_compaction_that_dies_is_made_whole_by_the_next(fed: Scene, place: str) -> None:
    name, when, is_made = KILLS[place]
    found = snapshots(FilesAddress.parse(fed.rig.target.url))
    before = found.newest()
    assert before is not None
    arguments = ["compact", "--target", fed.rig.target_dsn, "--log-url", fed.rig.config.log_url]
    removing = ["--remove", "--grace-hours", "0"]
    dying = subprocess.run([sys.executable, "-c", DYING, name, when, *arguments, *removing], check=False)
    assert dying.returncode == -signal.SIGKILL
    after = found.newest()
    assert after is not None
    assert after.version == before.version + int(is_made)
    fed.require_equal()
    report = compact(
        fed.rig.target,
        CompactOptions(remove=True, grace=CompactOptions().grace * 0),
        log=open_reader(fed.rig.config.log_url),
    )
    assert report.made is not is_made
    assert all(found.place.size(file.path) == file.bytes_ for file in after.files) or not is_made
    fed.rig.write("UPDATE t SET v = 'behind'")
    fed.rerun("last")
    fed.require_equal()

"""A lane into a directory of files, killed or asleep at each step: every change is there once, and no zombie's."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, Start
from airflow_parallel_apply.router.plan import plan
from tests.crash.scene import Scene, wait_until
from tests.integration.target_files.feeds import files_of, replayed
from tests.support.rig import execute
from tests.support.step_process import Fault
from tests.support.steps import StepProcess
from tests.support.variants import gated, variants

FEED = "airflow_parallel_apply.pipeline.target.files.feed:FeedWriter"
PLACE = "airflow_parallel_apply.pipeline.encode.files.place:FilePlace"
TARGET = "airflow_parallel_apply.pipeline.target.files.target:FilesTarget"

KILLS = {
    "while data is written": Fault(at=f"{PLACE}.write", when="before", call=2),
    "data written": Fault(at=f"{FEED}.finish", when="after", call=2),
    "before a manifest": Fault(at=f"{PLACE}.publish", when="before", call=4),
    "after a manifest": Fault(at=f"{PLACE}.publish", when="after", call=4),
    "between commit and finish": Fault(at=f"{TARGET}.commit", when="after", call=2),
}
"""The places where a lane dies."""

_MOST_FILES = 12
"""Random moments lie among so many files that lanes write: few enough that there is work left at the last moment."""


@pytest.fixture
def written(scene: Scene, ledger_dsn: str, tmp_path: Path) -> Scene:
    """Several units for each channel, and a TRUNCATE among them."""
    scene.rig = replace(scene.rig, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    scene.rig = scene.rig.having(start=Start.EMPTY, epoch_max_changes=100)
    execute(
        scene.rig.source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE u (id int PRIMARY KEY)"
    )
    scene.rig.prepare()
    for step in range(6):
        scene.rig.write(
            f"INSERT INTO t SELECT i + {step} * 100, 'a' FROM generate_series(1, 100) i",
            f"UPDATE t SET v = v || {step} WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 7 = 0",
            "INSERT INTO u SELECT generate_series(1, 9)",
            "TRUNCATE u",
        )
    return scene


def require_exact(scene: Scene, lake: Path) -> None:
    """Equal, nothing twice, and every file that a manifest names is there."""
    scene.require_equal()
    found = replayed(lake, "public.t")
    assert {(key, row["v"]) for key, row in found.items()} == set(scene.rig.rows("SELECT id, v FROM t", side="source"))
    assert all((lake / file.path).stat().st_size == file.bytes_ for file in files_of(lake))


def file_count(lake: Path) -> int:
    """Files of every kind, those that are being written as well."""
    return sum(len(names) for _, _, names in os.walk(lake))


def has_come(lake: Path, there: int, lanes: Sequence[StepProcess]) -> bool:
    """So many files are there, or no lane is left that would write them."""
    return file_count(lake) >= there or not any(lane.running for lane in lanes)


@pytest.mark.parametrize(
    "place", variants(KILLS, seldom=["while data is written", "data written", "between commit and finish"])
)
def test_a_lane_that_dies_leaves_every_change_once(written: Scene, tmp_path: Path, place: str) -> None:
    written.rig.capture("one")
    plan(written.rig.config, written.rig.target)
    opened = written.open("one")
    dying = written.start_lane(opened, fault=KILLS[place])
    assert dying.wait() == -signal.SIGKILL, dying.tail()
    written.rerun("one")
    require_exact(written, tmp_path / "lake")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("consistency", Consistency)
def test_lanes_that_die_at_twenty_random_moments_leave_every_change_once(
    written: Scene, tmp_path: Path, consistency: Consistency
) -> None:
    written.rig = written.rig.having(consistency=consistency, channels=4, unit_max_bytes=2**14)
    for step in range(10):
        written.rig.write(
            f"INSERT INTO t SELECT i + {step} * 2000 + 10000, 'b' FROM generate_series(1, 2000) i",
            f"UPDATE t SET v = v || {step} WHERE id % 2 = 0",
        )
    written.rig.capture("one")
    plan(written.rig.config, written.rig.target)
    lake = tmp_path / "lake"
    rng = random.Random(7)
    cut_off = 0
    for _ in range(20):
        opened = written.open("one")
        there = file_count(lake) + rng.randrange(_MOST_FILES)
        lanes = [written.start_lane(opened, lane) for lane in range(2)]
        wait_until(partial(has_come, lake, there, lanes), what="the moment")
        for lane in lanes:
            lane.signal(signal.SIGKILL)
        cut_off += [lane.wait() for lane in lanes].count(-signal.SIGKILL)
    assert cut_off > 10
    written.rerun("one")
    require_exact(written, tmp_path / "lake")


@gated
def test_a_zombie_lane_is_refused_by_the_directory_itself(written: Scene, tmp_path: Path) -> None:
    written.rig.capture("one")
    plan(written.rig.config, written.rig.target)
    opened = written.open("one")
    lane = written.start_lane(opened, fault=Fault(at=f"{PLACE}.publish", when="before", call=4, signal=signal.SIGSTOP))
    lane.wait_stopped()
    written.rerun("one")
    require_exact(written, tmp_path / "lake")
    before = written.positions()
    names = {file.path for file in files_of(tmp_path / "lake")}
    lane.signal(signal.SIGCONT)
    lane.wait()
    assert written.positions() == before
    assert {file.path for file in files_of(tmp_path / "lake")} == names

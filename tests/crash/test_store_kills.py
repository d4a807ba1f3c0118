"""A feeder of the store killed at each of its steps: what it left is no one's, and the run ends green and equal."""

from __future__ import annotations

import signal

import pytest

from airflow_parallel_apply.pipeline.config import StoreName
from tests.crash.history import write_units
from tests.crash.scene import Scene
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

STORE = "airflow_parallel_apply.pipeline.store.channel_log"

FEEDING = {
    "before its first file": Fault(at=f"{STORE}.feeder:ChannelWriter", when="before"),
    "between two files": Fault(at=f"{STORE}.file:ChannelWriter.finish", when="after", call=2),
    "before a stretch is held": Fault(at=f"{STORE}.directory:ChannelDirectory.hold", when="before", call=2),
    "after a stretch is held": Fault(at=f"{STORE}.directory:ChannelDirectory.hold", when="after", call=2),
}
TRIMMING = {
    "before a stretch is forgotten": Fault(at=f"{STORE}.directory:ChannelDirectory.forget", when="before"),
    "between a stretch and its files": Fault(at=f"{STORE}.directory:ChannelDirectory.forget", when="after"),
    "between two files": Fault(at=f"{STORE}.feeder:_remove", when="after", call=2),
}


@pytest.fixture
def written(scene: Scene) -> Scene:
    scene.rig = scene.rig.having(store=StoreName.CHANNEL_LOG)
    return write_units(scene)


def killed(scene: Scene, run_id: str, fault: Fault) -> None:
    """The task `open`, or else a lane, dies there."""
    opening = scene.start_open(run_id, fault=fault)
    if opening.wait() == 0:
        lane = scene.start_lane(scene.open(run_id), fault=fault)
        assert lane.wait() == -signal.SIGKILL, lane.tail()
    else:
        assert opening.wait() == -signal.SIGKILL, opening.tail()


@pytest.mark.parametrize(
    "place",
    variants(
        FEEDING,
        seldom=["before its first file", "between two files", "after a stretch is held"],
        gated=["before a stretch is held"],
    ),
)
def test_a_feeder_that_is_killed_leaves_a_run_that_ends_equal(written: Scene, place: str) -> None:
    written.start_capture("run").wait()
    killed(written, "run", FEEDING[place])
    written.rerun("run")
    written.require_equal()


@gated
@pytest.mark.parametrize("place", variants(TRIMMING, seldom=["before a stretch is forgotten"]))
def test_a_trim_that_is_killed_leaves_a_run_that_ends_equal(written: Scene, place: str) -> None:
    written.rig.run("before")
    written.rig.write("INSERT INTO t SELECT i, 'c' FROM generate_series(2000, 2900) i")
    written.start_capture("run").wait()
    killed(written, "run", TRIMMING[place])
    written.rerun("run")
    written.require_equal()

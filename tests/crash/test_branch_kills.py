"""Protocol `two_phase`: lanes killed or asleep at each step of a group, and the target killed with what is prepared."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from tests.crash.history import write_units
from tests.crash.scene import Scene
from tests.crash.struck_lane import (
    committed,
    finish_after_kill,
    finish_while_asleep,
    require_later_run,
    require_repeatable,
)
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

TARGET = "airflow_parallel_apply.pipeline.target.postgres.target"
BRANCHES = "airflow_parallel_apply.pipeline.target.postgres.positions.branches"
PREPARATION = "airflow_parallel_apply.pipeline.target.postgres.load.preparing:Preparation"

PLACES = {
    "before the first branch is prepared": Fault(at=f"{PREPARATION}.end", when="before"),
    "behind the first branch": Fault(at=f"{PREPARATION}.end", when="after"),
    "between two branches": Fault(at=f"{PREPARATION}.end", when="before", call=3),
    "before the record": Fault(at=f"{TARGET}:record", when="before"),
    "inside the record's transaction": Fault(at=f"{TARGET}:record", when="after"),
    "behind the record": Fault(at=f"{TARGET}:settle", when="before"),
    "between the commits": Fault(at=f"{BRANCHES}:end_branch", when="after"),
    "before the positions": Fault(at=f"{BRANCHES}:_forget", when="before"),
    "inside the positions' transaction": Fault(at=f"{BRANCHES}:_forget", when="after"),
    "behind the positions": Fault(at=f"{TARGET}:PostgresTarget.commit", when="after"),
}
"""The places where a lane dies, or falls asleep."""


def write_in_two_phases(scene: Scene) -> Scene:
    scene.rig = scene.rig.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.TWO_PHASE)
    return write_units(scene)


@pytest.fixture
def written(scene: Scene) -> Scene:
    return write_in_two_phases(scene)


def killed_at(scene: Scene, place: str) -> None:
    lane = scene.start_lane(scene.open("run"), fault=PLACES[place])
    assert lane.wait() == -signal.SIGKILL, lane.tail()


def require_nothing_left(scene: Scene) -> None:
    assert scene.staged() == []
    assert scene.prepared() == []


@pytest.mark.parametrize(
    "place", variants(PLACES, seldom={*PLACES} - {"between the commits"}, gated=["between the commits"])
)
def test_what_a_killed_lane_held_is_carried_on_by_another(written: Scene, place: str) -> None:
    closed = finish_after_kill(written, PLACES[place])
    require_nothing_left(written)
    require_repeatable(written, closed)
    require_nothing_left(written)


@pytest.mark.parametrize(
    "place", variants(PLACES, seldom={*PLACES} - {"behind the record"}, gated=["behind the record"])
)
def test_the_next_run_finds_nothing_prepared(written: Scene, place: str) -> None:
    killed_at(written, place)
    opened = written.open("run")
    assert written.prepared() == []
    written.rig.apply(opened)
    written.close(opened)
    written.require_equal()
    require_nothing_left(written)


@pytest.mark.parametrize(
    "place",
    variants(
        PLACES,
        seldom=[place for place in PLACES if place != "between the commits"],
        gated=["between the commits"],
    ),
)
def test_a_lane_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(written: Scene, place: str) -> None:
    finish_while_asleep(written, PLACES[place], lambda scene: (committed(scene), scene.staged(), scene.prepared()))
    require_nothing_left(written)
    require_later_run(written)
    require_nothing_left(written)


@gated
@pytest.mark.parametrize("place", ["behind the record", "between two branches"])
def test_a_target_that_crashes_has_what_was_prepared_and_decided(
    scene: Scene, durable_target: PostgresServer, place: str
) -> None:
    scene.rig = replace(scene.rig, target_dsn=durable_target.create_database("target"))
    scene.target_server = durable_target
    written = write_in_two_phases(scene)
    killed_at(written, place)
    written.target_server.kill()
    written.target_server.start()
    assert written.prepared() != []
    written.rerun("run")
    written.require_equal()
    require_nothing_left(written)

"""Epoch consistency: a lane killed or asleep at each step of a group, and a target lost with what was staged."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from tests.crash.history import write_units
from tests.crash.scene import Scene
from tests.crash.struck_lane import (
    COORDINATOR,
    TARGET,
    WHILE_IT_STAGES,
    committed,
    finish_after_kill,
    finish_while_asleep,
    require_later_run,
    require_repeatable,
)
from tests.support.step_process import Fault
from tests.support.variants import variants

GROUPS = "airflow_parallel_apply.pipeline.coordinate.groups:Groups"

PLACES = {
    "before it stages": Fault(at=f"{TARGET}:PostgresTarget.take_part", when="after", call=2),
    "while it stages": WHILE_IT_STAGES,
    "before it arrives": Fault(at=f"{GROUPS}.arrive", when="before", call=4),
    "after it arrived": Fault(at=f"{GROUPS}.arrive", when="after", call=4),
    "before the commit's claim of the channels": Fault(at=f"{TARGET}:PostgresTarget.take", when="before", call=2),
    "before the commit": Fault(at=f"{TARGET}:PostgresTarget.commit", when="before", call=2),
    "inside the commit": Fault(at=f"{TARGET}:move", when="before", call=2),
    "after the commit": Fault(at=f"{TARGET}:PostgresTarget.commit", when="after", call=2),
    "after the end of the commit's task": Fault(at=f"{GROUPS}.finish", when="after", call=2),
    "between the end of the commit's task and feeding": Fault(at=f"{COORDINATOR}.feed", when="before", call=2),
    "inside the critical transaction": Fault(at=f"{TARGET}:Steps.run", when="after", call=3),
    "before the stop": Fault(at=f"{GROUPS}.stop", when="before"),
    "after the stop": Fault(at=f"{GROUPS}.stop", when="after"),
}
"""The places where a lane dies, or falls asleep."""


@pytest.fixture
def written(scene: Scene) -> Scene:
    scene.rig = scene.rig.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.LEADER_MERGE)
    return write_units(scene)


@pytest.mark.parametrize(
    "place",
    variants(
        PLACES,
        gated=[
            "before it stages",
            "while it stages",
            "before it arrives",
            "after it arrived",
            "before the commit's claim of the channels",
            "before the commit",
            "after the commit",
            "after the end of the commit's task",
            "between the end of the commit's task and feeding",
            "inside the critical transaction",
            "before the stop",
            "after the stop",
            "inside the commit",
        ],
    ),
)
def test_what_a_killed_lane_held_is_carried_on_by_another(written: Scene, place: str) -> None:
    closed = finish_after_kill(written, PLACES[place])
    assert written.staged() == []
    require_repeatable(written, closed)


@pytest.mark.parametrize(
    "place",
    variants(
        [
            "while it stages",
            "before it arrives",
            "before the commit's claim of the channels",
            "before the commit",
            "inside the commit",
            "after the commit",
        ],
        seldom=["before it arrives", "before the commit's claim of the channels", "before the commit"],
        gated=["while it stages", "inside the commit", "after the commit"],
    ),
)
def test_a_lane_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(written: Scene, place: str) -> None:
    finish_while_asleep(written, PLACES[place], committed)
    require_later_run(written)
    assert written.staged() == []

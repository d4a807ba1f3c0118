"""A lane killed or asleep while it commits insertions where they are loaded; another one carries on."""

from __future__ import annotations

import pytest

from tests.crash.scene import Scene
from tests.crash.struck_lane import committed, finish_after_kill, finish_while_asleep, require_repeatable
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

DIRECT = "airflow_parallel_apply.pipeline.target.postgres.load.committing"

PLACES = {
    "with rows in the tables": Fault(at=f"{DIRECT}:DirectCommit.end", when="before", call=2),
    "before the position": Fault(at=f"{DIRECT}:move", when="before", call=2),
    "between position and commit": Fault(at=f"{DIRECT}:move", when="after", call=2),
    "behind the commit": Fault(at=f"{DIRECT}:DirectCommit.end", when="after", call=2),
}


@pytest.fixture
def inserted(scene: Scene) -> Scene:
    """Several units for each of three channels, with a key and without."""
    scene.rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE entry (at integer, note text)")
    scene.rig.prepare()
    scene.rig.write(
        *(
            statement
            for first in range(0, 900, 100)
            for statement in (
                f"INSERT INTO t SELECT i, 'a' FROM generate_series({first}, {first + 99}) i",
                "INSERT INTO entry SELECT i % 3, 'same' FROM generate_series(1, 50) i",
            )
        )
    )
    scene.rig = scene.rig.having(epoch_max_changes=150, unit_max_bytes=1000)
    return scene


@gated
@pytest.mark.parametrize(
    "place", variants(PLACES, seldom=[place for place in PLACES if place != "between position and commit"])
)
def test_insertions_of_a_killed_lane_are_there_once(inserted: Scene, place: str) -> None:
    require_repeatable(inserted, finish_after_kill(inserted, PLACES[place]))


@gated
@pytest.mark.parametrize("place", variants(PLACES, seldom=[place for place in PLACES if place != "behind the commit"]))
def test_a_lane_that_sleeps_with_its_insertions_past_its_lease_adds_nothing(inserted: Scene, place: str) -> None:
    finish_while_asleep(inserted, PLACES[place], committed)

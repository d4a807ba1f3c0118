"""A lane killed or asleep at each place of a merge point; another one carries on."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.run import applying
from airflow_parallel_apply.pipeline.target.postgres.positions import positions
from tests.crash.scene import Scene
from tests.crash.struck_lane import finish_after_kill, finish_while_asleep
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

MERGE_POINTS = "airflow_parallel_apply.pipeline.coordinate.merge_points:MergePoints"
MERGES = "airflow_parallel_apply.pipeline.apply.merges:Merges"
BARRIERS = "airflow_parallel_apply.pipeline.apply.barriers:Barriers"
POSITIONS = "airflow_parallel_apply.pipeline.target.postgres.positions.positions"

PLACES = {
    "between conflict and merge point": Fault(at=f"{MERGE_POINTS}.open", when="before"),
    "between opening and gathering": Fault(at=f"{MERGE_POINTS}.open", when="after"),
    "between gathering and merging": Fault(at=f"{MERGE_POINTS}.gather", when="after"),
    "between staging and merging": Fault(at=f"{MERGES}._staged", when="after"),
    "inside the target's transaction": Fault(at=f"{POSITIONS}:move_all", when="after"),
    "between merging and counting": Fault(at=f"{BARRIERS}._count", when="before"),
    "between merging and closing": Fault(at=f"{BARRIERS}._count", when="after"),
    "after closing": Fault(at=f"{MERGE_POINTS}.close", when="after"),
}

KEYS = 60


@pytest.fixture
def handed_over(scene: Scene) -> Scene:
    """Each of three channels holds rows whose unique values the others want."""
    scene.rig.both("CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)")
    scene.rig.prepare()
    scene.rig.write(f"INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, {KEYS}) i")
    scene.rig.run("first")
    for step in range(1, 9):
        scene.rig.transaction(
            f"UPDATE t SET u = u + {10 * KEYS}", f"UPDATE t SET u = (id + {step}) % {KEYS}, v = v || {step}"
        )
    scene.rig = scene.rig.having(epoch_max_changes=150)
    return scene


def merge_points(scene: Scene) -> int:
    counted = "SELECT coalesce(sum(count), 0)::integer FROM parallel_apply.rework WHERE kind = 'merge point'"
    (count,) = scene.rig.rows(counted)[0]
    return int(count)


@pytest.mark.parametrize(
    "place",
    variants(
        PLACES,
        gated=[
            "between conflict and merge point",
            "between opening and gathering",
            "between staging and merging",
            "between gathering and merging",
            "between merging and counting",
            "between merging and closing",
            "after closing",
            "inside the target's transaction",
        ],
    ),
)
def test_a_merge_point_is_carried_on_by_another_lane(handed_over: Scene, place: str) -> None:
    finish_after_kill(handed_over, PLACES[place])
    assert handed_over.staged() == []
    before = merge_points(handed_over)
    assert before > 0
    handed_over.rerun("run")
    assert merge_points(handed_over) == before


@gated
@pytest.mark.parametrize(
    "place",
    variants(
        ["between staging and merging", "inside the target's transaction"], seldom=["between staging and merging"]
    ),
)
def test_a_lane_that_sleeps_through_its_merge_changes_nothing_when_it_wakes(handed_over: Scene, place: str) -> None:
    finish_while_asleep(handed_over, PLACES[place], lambda scene: (merge_points(scene), scene.positions()))


@gated
def test_a_run_that_dies_while_its_channels_merge_is_opened_anew(handed_over: Scene) -> None:
    opened = handed_over.open("run")
    lane = handed_over.start_lane(opened, fault=PLACES["between gathering and merging"])
    assert lane.wait() == -signal.SIGKILL, lane.tail()
    handed_over.rerun("run")
    handed_over.require_equal()


@gated
def test_a_target_that_restarts_inside_a_merge_is_asked_again(
    handed_over: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = threading.Event()
    move_all = positions.move_all

    def kill_once(*arguments: Any) -> int:
        moved = move_all(*arguments)
        if not killed.is_set():
            handed_over.target_server.kill()
            killed.set()
        return moved

    monkeypatch.setattr(positions, "move_all", kill_once)
    opened = handed_over.open("run")
    with ThreadPoolExecutor(max_workers=1) as pool:
        lane = pool.submit(handed_over.rig.apply, opened)
        assert killed.wait(180)
        # A server ends with the thread that started it.
        handed_over.target_server.start()
        lane.result()
    handed_over.close(opened)
    handed_over.require_equal()
    assert handed_over.staged() == []
    assert merge_points(handed_over) > 0


def test_a_lane_that_begins_while_the_target_restarts_waits_for_it(
    handed_over: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()
    monkeypatch.setattr(applying, "_tell", lambda error: tried.set())
    opened = handed_over.open("run")
    handed_over.target_server.kill()
    with ThreadPoolExecutor(max_workers=1) as pool:
        lane = pool.submit(handed_over.rig.apply, opened)
        assert tried.wait(180)
        handed_over.target_server.start()
        lane.result()
    handed_over.close(opened)
    handed_over.require_equal()

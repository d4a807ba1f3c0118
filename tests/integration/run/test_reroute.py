"""Another number of channels while lanes of before live: a lapsed lease is not an idle pipeline."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import OwnershipLost, PlanError, TargetError
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.open import open_target
from airflow_parallel_apply.router.plan import plan
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.variants import gated

ROWS = 40


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(start=Start.EMPTY, pipeline="p", log_url=str(tmp_path / "log"), epoch_max_changes=5)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY)")
    return made


def written(rig: Rig, channels: int) -> Rig:
    """The pipeline with so many channels, and rows for all of them captured."""
    made = rig.having(channels=channels)
    made.prepare()
    made.write(*(f"INSERT INTO t VALUES ({number})" for number in range(ROWS)))
    made.capture("a")
    return made


def are_apart(rig: Rig) -> bool:
    return rig.rows("SELECT count(DISTINCT seqno) > 1 FROM parallel_apply.position") == [(True,)]


def lapse(rig: Rig) -> None:
    execute(rig.target_dsn, "UPDATE parallel_apply.pipeline SET lease_until = now() - interval '1 hour'")


@pytest.mark.parametrize(("before", "after"), [pytest.param(8, 4, marks=pytest.mark.long), (4, 8)])
def test_a_lapsed_lease_lets_nobody_change_the_routing_below_a_running_lane(
    rig: Rig, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, later = written(rig, before), rig.having(channels=after)
    opened = former.open("a")
    staging, go_on = threading.Event(), threading.Event()
    stage = LocalStage.stage

    def slow(self: LocalStage, unit: Unit) -> StagedUnit:
        staging.set()
        assert go_on.wait(180)
        return stage(self, unit)

    monkeypatch.setattr(LocalStage, "stage", slow)
    with ThreadPoolExecutor(1) as pool:
        lane = pool.submit(former.lane, opened, 0)
        assert staging.wait(180)
        lapse(former)
        later.prepare()
        assert plan(later.config, later.target).left_to_open
        go_on.set()
        report = lane.result(timeout=120)
    assert former.close(opened, [report.to_json()]).stop_seqno == ROWS - 1
    later.write(f"INSERT INTO t VALUES ({ROWS})")
    later.run("b")
    assert later.comparison().equal
    assert later.rows("SELECT count(*) FROM parallel_apply.position") == [(after,)]


@gated
@pytest.mark.parametrize(("before", "after"), [(8, 4), pytest.param(4, 8, marks=pytest.mark.long)])
def test_a_lane_that_starts_after_a_reroute_is_told_to_open_anew(rig: Rig, before: int, after: int) -> None:
    former, later = written(rig, before), rig.having(channels=after)
    opened = former.open("a")
    with suppress(TargetError):
        # No lane has come so far: the run is given up, and its channels stand where they did.
        former.close(opened)
    later.prepare()
    plan(later.config, later.target)
    with pytest.raises(OwnershipLost, match="Clear the task open"):
        former.lane(opened, 0)
    later.run("b")
    assert later.comparison().equal


@gated
def test_a_crashed_run_is_finished_under_its_own_routing_as_the_hint_says(rig: Rig) -> None:
    former, later = written(rig, 8), rig.having(channels=4)
    opened = former.open("a")
    with pytest.raises(Cancelled):
        former.lane(opened, 0, cancelled=lambda: are_apart(former))
    lapse(former)
    later.prepare()
    assert are_apart(former)
    with pytest.raises(PlanError, match="Run with the former parameters"):
        later.open("b")
    former.run("a")
    later.run("b")
    assert later.comparison().equal


@gated
def test_a_take_under_another_routing_is_refused(rig: Rig) -> None:
    former = written(rig, 2)
    opened = former.open("a")
    lane = open_target(former.target, "p")
    try:
        with pytest.raises(OwnershipLost, match="routed anew"):
            lane.take(0, generation=opened.generation, token="claim", routing_digest="another")
    finally:
        lane.close()


@gated
@pytest.mark.parametrize(("run", "lanes"), [(2, 4), pytest.param(4, 2, marks=pytest.mark.long)])
def test_lanes_that_are_given_another_number_of_channels_than_their_run_work_as_it_was_opened(
    rig: Rig, run: int, lanes: int
) -> None:
    opened_with, given = written(rig, run), rig.having(channels=lanes)
    opened_with.write("TRUNCATE t", "INSERT INTO t SELECT generate_series(1, 20)", "DELETE FROM t WHERE id % 3 = 0")
    opened_with.capture("b")
    plan(opened_with.config, opened_with.target)
    opened = opened_with.open("b")
    given.close(opened, given.apply(opened, lanes=2))
    assert opened_with.comparison().equal
    given.write("INSERT INTO t VALUES (100)")
    given.run("c")
    assert given.comparison().equal

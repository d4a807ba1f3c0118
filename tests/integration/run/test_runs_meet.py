"""Runs of one pipeline beside and after each other: bounds stay frozen, a clear changes nothing, zombies do no harm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import LeaseBusy, OwnershipLost
from airflow_parallel_apply.pipeline.ledger.postgres import PostgresLedger
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

_SET_BACK = (
    "UPDATE parallel_apply.pipeline SET generation = generation - 1, owner = NULL",
    "UPDATE parallel_apply.position SET generation = generation - 1",
    "DELETE FROM parallel_apply.task",
)


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        start=Start.EMPTY, pipeline="p", log_url=str(tmp_path / "log"), channels=2, epoch_max_changes=5
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY)")
    made.prepare()
    return made


def insert(rig: Rig, first: int, last: int) -> None:
    rig.write(*(f"INSERT INTO t VALUES ({number})" for number in range(first, last + 1)))


def opened(rig: Rig, run_id: str) -> run.OpenedRun:
    return run.open_run(rig.config, rig.source, rig.target, owner=run_id, run_id=run_id)


def seqnos(rig: Rig) -> set[int]:
    return {seqno for (seqno,) in rig.rows("SELECT seqno FROM parallel_apply.position")}


def test_a_run_ends_at_its_own_bound_when_another_capture_went_further(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(rig, 1, 8)
    monkeypatch.setattr(preparing, "FIRST_CAPTURE_CHANGES", 1)
    assert not rig.capture("a").done
    first = opened(rig, "a")
    assert first.until_seqno is None
    insert(rig, 9, 12)
    with closing(open_capture(rig.source, rig.config)) as other:
        list(other.capture(other.source.offset(), max_changes=1000, cancelled=lambda: False))
    closed = run.close_run(first, rig.config, rig.target, rig.apply(first))
    assert (closed.stop_seqno, closed.stopped_early) == (7, False)
    assert seqnos(rig) == {7}
    assert rig.run("b").stop_seqno == 11
    assert rig.comparison().equal


@gated
def test_a_run_whose_generation_s_number_came_again_after_the_target_was_set_back_joins_nobody(rig: Rig) -> None:
    """Its failed tasks are cleared while another run is at work."""
    insert(rig, 1, 4)
    rig.capture("a")
    first = opened(rig, "a")
    execute(rig.target_dsn, *_SET_BACK)
    insert(rig, 5, 8)
    rig.capture("b")
    second = opened(rig, "b")
    assert second.generation == first.generation
    for step in (lambda: rig.lane(first, 0), lambda: rig.close(first)):
        with pytest.raises(OwnershipLost, match="is over"):
            step()
    assert rig.close(second, rig.apply(second)).stop_seqno == second.until_seqno
    assert rig.comparison().equal


@gated
def test_a_close_does_not_take_another_runs_end_under_its_generation_s_number_for_its_own(rig: Rig) -> None:
    """The target was set back, and another run has ended since, before this one's end."""
    rig.capture("b")
    insert(rig, 1, 4)
    rig.capture("a")
    first = opened(rig, "a")
    execute(rig.target_dsn, *_SET_BACK)
    closed = rig.run("b")
    assert (closed.generation, closed.stop_seqno) == (first.generation, -1)
    with pytest.raises(OwnershipLost, match="is over"):
        rig.close(first)
    rig.run("a")
    assert rig.comparison().equal


@gated
def test_while_a_run_is_under_way_nobody_else_plans_for_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound lies in what is not captured yet: another one's epoch might go on beyond it."""
    insert(rig, 1, 8)
    monkeypatch.setattr(preparing, "FIRST_CAPTURE_CHANGES", 1)
    rig.capture("a")
    first = opened(rig, "a")
    assert first.until_seqno is None
    planned = first.coordinator_state["fed_seqno"]
    insert(rig, 9, 12)
    with closing(open_capture(rig.source, rig.config)) as other:
        list(other.capture(other.source.offset(), max_changes=1000, cancelled=lambda: False))
    told = plan(rig.config, rig.target)
    assert (told.left_to_open, told.planned_seqno) == (True, planned)
    closed = run.close_run(first, rig.config, rig.target, rig.apply(first))
    assert closed.stop_seqno == 7
    assert rig.run("b").stop_seqno == 11
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("place", variants(["before it opens", "before it plans"], seldom=["before it plans"]))
def test_what_another_route_plans_while_a_run_opens_does_not_carry_it_beyond_its_bound(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    insert(rig, 1, 8)
    rig.capture("a")
    insert(rig, 9, 12)
    with closing(open_capture(rig.source, rig.config)) as other:
        list(other.capture(other.source.offset(), max_changes=1000, cancelled=lambda: False))
    monkeypatch.setattr(PostgresLedger, "run_cuts", lambda ledger, above_seqno: ())
    if place == "before it opens":
        plan(rig.config, rig.target)
        monkeypatch.undo()
    else:
        cut = PostgresLedger.cut_plan

        def between(ledger: PostgresLedger, seqno: int, positions: Sequence[Position], *, generation: int) -> None:
            cut(ledger, seqno, positions, generation=generation)
            # It looked for bounds before this run's was known, and is there sooner.
            plan(rig.config, rig.target)
            monkeypatch.undo()

        monkeypatch.setattr(PostgresLedger, "cut_plan", between)
    first = opened(rig, "a")
    assert run.close_run(first, rig.config, rig.target, rig.apply(first)).stop_seqno == 7


@gated
def test_a_run_that_waits_for_another_leaves_the_capture_to_it(rig: Rig) -> None:
    insert(rig, 1, 3)
    rig.capture("a")
    first = opened(rig, "a")
    insert(rig, 4, 6)
    waiting = rig.capture("b")
    assert (waiting.rows, waiting.done) == (0, False)
    with pytest.raises(LeaseBusy, match="run a owns the pipeline"):
        opened(rig, "b")
    assert run.close_run(first, rig.config, rig.target, rig.apply(first)).stop_seqno == 2
    second = opened(rig, "b")
    assert run.close_run(second, rig.config, rig.target, rig.apply(second)).stop_seqno == 5
    assert rig.comparison().equal


@gated
def test_a_close_that_is_repeated_says_the_same_and_stays_green(rig: Rig) -> None:
    insert(rig, 1, 5)
    rig.capture("a")
    first = opened(rig, "a")
    reports = rig.apply(first)
    closed = run.close_run(first, rig.config, rig.target, reports)
    assert run.close_run(first, rig.config, rig.target, reports) == closed


@gated
def test_a_cleared_run_changes_nothing_while_the_source_goes_on(rig: Rig) -> None:
    insert(rig, 1, 5)
    closed = rig.run("a")
    insert(rig, 6, 9)
    again = rig.run("a")
    assert (again.stop_seqno, again.rows) == (closed.stop_seqno, 0)
    assert rig.rows("SELECT count(*) FROM t") == [(5,)]
    rig.run("b")
    assert rig.comparison().equal


@gated
def test_lanes_that_are_cleared_alone_say_what_to_clear(rig: Rig) -> None:
    insert(rig, 1, 5)
    rig.capture("a")
    first = opened(rig, "a")
    run.close_run(first, rig.config, rig.target, rig.apply(first))
    with pytest.raises(OwnershipLost, match="Clear the task open"):
        rig.lane(first, 0)
    assert seqnos(rig) == {4}


@gated
def test_a_former_close_leaves_the_tasks_of_its_successor_alone(rig: Rig) -> None:
    insert(rig, 1, 5)
    rig.capture("a")
    first = opened(rig, "a")
    second = opened(rig, "a")
    with pytest.raises(OwnershipLost):
        run.close_run(first, rig.config, rig.target, [])
    assert run.close_run(second, rig.config, rig.target, rig.apply(second)).stop_seqno == 4


@gated
def test_status_counts_what_each_channel_has_and_lacks(rig: Rig) -> None:
    insert(rig, 1, 20)
    rig.run("a")
    insert(rig, 21, 26)
    rig.capture("b")
    plan(rig.config, rig.target)
    told = read_status(rig.target, "p", rig.config.log_url)
    assert [sum(counts) for counts in zip(*((one.rows, one.lag_rows) for one in told.channels), strict=True)] == [20, 6]
    assert {one.lag_transactions for one in told.channels} == {6}
    assert told.phase == "stopped"


@gated
def test_a_run_whose_lanes_wait_for_slots_keeps_the_pipeline_while_it_is_known_to_go_on(rig: Rig) -> None:
    """An hour behind its lease it is taken to be stuck; one that is over does not keep anybody."""
    insert(rig, 1, 3)
    rig.capture("a")
    first = rig.open("a")

    def lapsed_for(time: str) -> None:
        execute(rig.target_dsn, f"UPDATE parallel_apply.pipeline SET lease_until = now() - interval '{time}'")

    def follow(*, goes_on: bool) -> run.OpenedRun:
        return run.open_run(
            rig.config, rig.source, rig.target, owner="b", run_id="b", goes_on=lambda owner: goes_on and owner == "a"
        )

    lapsed_for("5 minutes")
    with pytest.raises(LeaseBusy, match="run a owns the pipeline, and goes on") as busy:
        follow(goes_on=True)
    assert busy.value.is_lapsed
    assert run.close_run(first, rig.config, rig.target, rig.apply(first)).stop_seqno == 2
    for time, goes_on in (("5 minutes", False), ("61 minutes", True)):
        former = rig.open("a")
        lapsed_for(time)
        assert follow(goes_on=goes_on).generation == former.generation + 1
        lapsed_for("1 day")

"""Runs with data intervals as Airflow brings them: what they wait for, when they are skipped, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, CronTriggerTimetable, DeltaDataIntervalTimetable
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import TimeRestriction
from airflow.utils.state import DagRunState
from dateutil.relativedelta import relativedelta
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.operators import earlier
from airflow_parallel_apply.operators.earlier import wait_or_refuse
from airflow_parallel_apply.operators.intervals import interval_before
from airflow_parallel_apply.pipeline.errors import GapAhead, LeaseBusy
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.task import interval_of
from tests.provider.dag_runs import error_of, load_dag, without_retries
from tests.provider.fakes import FakePipeline
from tests.support.variants import gated

HOUR = timedelta(hours=1)
EIGHT = datetime(2026, 3, 1, 8, tzinfo=UTC)


def hour(number: int) -> Interval:
    return Interval(start=EIGHT + number * HOUR, end=EIGHT + (number + 1) * HOUR)


# --- whole runs under dag.test() ---


@pytest.fixture
def dag(airflow_home: Any, connections: Any) -> DAG:
    return load_dag("parallel_apply_hourly")


@pytest.fixture
def run(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], Any]:
    without_retries(dag, monkeypatch)
    return lambda logical_date: dag.test(logical_date=logical_date)


def states(dag_run: Any) -> dict[str, str]:
    return {ti.task_id.removeprefix("hourly."): str(ti.state) for ti in dag_run.get_task_instances()}


@gated
def test_every_task_is_told_the_runs_interval(run: Any, pipeline: FakePipeline) -> None:
    done = run(EIGHT)
    assert done.state == "success"
    told = Interval(start=done.data_interval_start, end=done.data_interval_end)
    assert told.end - told.start == HOUR
    assert {pipeline.asked[step]["interval"] for step in ("changes_available", "capture", "open")} == {told}
    assert pipeline.asked["source_is_past"]["time"] == told.end


@gated
def test_a_covered_interval_is_skipped_at_once_and_green(run: Any, pipeline: FakePipeline) -> None:
    pipeline.changes = None
    done = run(EIGHT + HOUR)
    assert done.state == "success"
    assert set(states(done).values()) == {"skipped"}
    assert pipeline.calls == ["source_is_past", "changes_available"]


@gated
def test_an_interval_that_is_not_past_at_the_source_is_waited_for(run: Any, pipeline: FakePipeline) -> None:
    pipeline.looks_before_past = 2
    done = run(EIGHT + 2 * HOUR)
    assert done.state == "success"
    assert pipeline.calls[:5] == ["source_is_past"] * 3 + ["changes_available", "capture"]


@gated
def test_a_gap_that_nobody_is_to_close_is_red_and_says_what_to_run(run: Any, pipeline: FakePipeline) -> None:
    pipeline.fail["open"] = [gap(since=EIGHT - 30 * HOUR + timedelta(minutes=5))]
    done = run(EIGHT + 3 * HOUR)
    assert states(done)["open"] == "failed"
    assert done.state == "failed"
    assert pipeline.calls.count("open") == 1
    first = hour(-30)
    said = f"Run the interval {first} first: airflow backfill create --dag-id parallel_apply_hourly --from-date"
    assert said in error_of(done, "hourly.open")


# --- the runs before ---


@dataclass
class Run:
    logical_date: datetime
    state: str
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    dag_id: str = "orders"
    run_id: str = "r"


def hourly(number: int, state: str) -> Run:
    interval = hour(number)
    return Run(interval.start, state, interval.start, interval.end, run_id=f"r{number}")


def gap(since: datetime, until: datetime = EIGHT + 100 * HOUR) -> GapAhead:
    """Up to the run's interval unless told."""
    return GapAhead("the run's interval begins later", since=since, until=until, last_seqno=41, generation=3)


def judge(
    monkeypatch: pytest.MonkeyPatch,
    before: list[Run],
    since: datetime,
    *,
    number: int = 5,
    until: datetime = EIGHT + 100 * HOUR,
    timetable: object = DeltaDataIntervalTimetable(HOUR),
) -> None:
    """Judge an hour's run with these runs before it; what is missing was committed from `since` to `until`."""
    own = hourly(number, "running")

    def previous(dag_id: str, logical_date: datetime) -> Run | None:
        assert dag_id == "orders"
        return max(
            (run for run in before if run.logical_date < logical_date), key=lambda run: run.logical_date, default=None
        )

    monkeypatch.setattr(earlier, "_previous_run", previous)
    context: Any = {
        "dag": SimpleNamespace(timetable=timetable),
        "dag_run": own,
        "run_id": own.run_id,
        "ti": own,
        "data_interval_start": own.data_interval_start,
        "data_interval_end": own.data_interval_end,
    }
    wait_or_refuse(context, gap(since, until))


INSIDE_TWO = hour(2).start + timedelta(minutes=20)


def test_runs_that_are_under_way_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [hourly(2, "queued"), hourly(3, "running"), hourly(4, "queued")]
    with pytest.raises(LeaseBusy) as busy:
        judge(monkeypatch, before, INSIDE_TWO)
    assert (busy.value.reach_seqno, busy.value.generation) == (41, 3)


def test_what_runs_wait_to_apply_that_cannot_start_is_applied_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    judge(monkeypatch, [hourly(number, "queued") for number in (2, 3, 4)], INSIDE_TWO)


@pytest.mark.parametrize("later", [[], [hourly(4, "failed")], [hourly(3, "success"), hourly(4, "queued")]])
def test_intervals_behind_the_gap_s_last_transaction_need_no_run(
    monkeypatch: pytest.MonkeyPatch, later: list[Run]
) -> None:
    """A backfill of hours long ago, under a schedule that goes on."""
    with pytest.raises(LeaseBusy):
        judge(monkeypatch, [hourly(1, "queued"), hourly(2, "running"), *later], hour(1).start, until=INSIDE_TWO)
    judge(monkeypatch, [hourly(1, "queued"), hourly(2, "queued"), *later], hour(1).start, until=INSIDE_TWO)
    with pytest.raises(GapAhead, match=r"Run the interval \[2026-03-01T09:00:00"):
        judge(monkeypatch, [hourly(1, "running"), *later], hour(1).start, until=INSIDE_TWO)


@pytest.mark.parametrize(
    "before",
    [
        [],
        [hourly(4, "queued")],
        [hourly(2, "queued"), hourly(4, "running")],
        [hourly(3, "queued"), hourly(4, "running")],
    ],
    ids=["none", "too few", "a hole", "the first is missing"],
)
def test_a_gap_without_runs_names_the_first_interval_and_the_command(
    monkeypatch: pytest.MonkeyPatch, before: list[Run]
) -> None:
    with pytest.raises(GapAhead) as refused:
        judge(monkeypatch, before, INSIDE_TWO)
    assert str(refused.value).endswith(
        "Run the interval [2026-03-01T10:00:00+00:00, 2026-03-01T11:00:00+00:00) first: airflow backfill create "
        "--dag-id orders --from-date 2026-03-01T10:00:00+00:00 --to-date 2026-03-01T12:00:00+00:00; then clear this "
        "task with everything downstream."
    )


def test_a_gap_that_no_run_of_the_timetable_may_hold_is_closed_by_one_without_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half_of_each_hour = CronTriggerTimetable("@hourly", timezone="UTC", interval=HOUR / 2)
    with pytest.raises(GapAhead) as refused:
        judge(monkeypatch, [], INSIDE_TWO, timetable=half_of_each_hour)
    assert str(refused.value).endswith(
        "First trigger the DAG without a logical date, which applies everything that is committed; then clear this "
        "task with everything downstream."
    )


LEFT_OUT = (
    " (or, if its tasks leave the pipeline out, trigger the DAG without a logical date, which applies everything that "
    "is committed)"
)


@pytest.mark.parametrize(("state", "otherwise"), [(DagRunState.FAILED, ""), (DagRunState.SUCCESS, LEFT_OUT)])
def test_a_run_that_ended_and_left_a_gap_is_named(
    monkeypatch: pytest.MonkeyPatch, state: DagRunState, otherwise: str
) -> None:
    before = [hourly(2, state), hourly(3, "running"), hourly(4, "queued")]
    with pytest.raises(GapAhead) as refused:
        judge(monkeypatch, before, INSIDE_TWO)
    assert f"or clear the run r2, which is {state.value}{otherwise}; then clear this task" in str(refused.value)


def test_runs_without_an_interval_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    manual = Run(hour(4).start + timedelta(minutes=1), "failed")
    empty = Run(hour(3).start + timedelta(minutes=1), "success", hour(3).start, hour(3).start)
    judge(monkeypatch, [manual, empty, *(hourly(number, "queued") for number in (2, 3, 4))], INSIDE_TWO)


@pytest.mark.parametrize("state", ["running", "success", "failed"])
def test_a_run_that_was_triggered_by_hand_hides_none_of_those_before_it(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Airflow gives it the interval before the one in which it was triggered."""
    gone = hour(3)
    by_hand = Run(hour(4).start + timedelta(minutes=30), state, gone.start, gone.end, run_id="manual")
    before = [*(hourly(number, "queued") for number in (2, 3)), hourly(4, "running"), by_hand]
    with pytest.raises(LeaseBusy):
        judge(monkeypatch, before, INSIDE_TWO)


TIMETABLES = [
    *(
        DeltaDataIntervalTimetable(delta)
        for delta in (timedelta(minutes=7), timedelta(days=1), relativedelta(months=1))
    ),
    *(
        CronDataIntervalTimetable(expression, timezone="Europe/Berlin")
        for expression in ("@hourly", "@daily", "@monthly", "30 2 * * *", "0 0 * * 1-5", "0 9-17 * * 1-5")
    ),
]


@gated
@pytest.mark.parametrize("timetable", TIMETABLES, ids=str)
@given(seconds=st.integers(0, 2 * 365 * 24 * 3600), back=st.integers(0, 40 * 24 * 3600))
def test_the_interval_named_is_one_that_airflow_makes_and_holds_the_first_missing_transaction(
    timetable: Any, seconds: int, back: int
) -> None:
    theirs = coerce_to_core_timetable(timetable)
    now = pendulum.instance(EIGHT).add(seconds=seconds, microseconds=1)
    made = theirs.infer_manual_data_interval(run_after=now)
    own = Interval(start=made.start, end=made.end)
    last = interval_before(own, timetable)
    since = own.start - timedelta(seconds=back, microseconds=1)
    first = interval_before(own, timetable, holding=since)
    assert first.start <= since < first.end <= own.start == last.end
    if isinstance(timetable, CronDataIntervalTimetable):
        for interval in (first, last):
            from_there = TimeRestriction(pendulum.instance(interval.start), None, catchup=True)
            backfilled = theirs.next_dagrun_info(last_automated_data_interval=None, restriction=from_there)
            assert backfilled.data_interval.start == interval.start


@gated
@pytest.mark.parametrize(
    ("expression", "timezone", "since"),
    [
        ("*/15 * * * *", "America/New_York", "2026-10-31"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-27"),
        ("0 2 * * *", "Europe/Berlin", "2026-10-23"),
        ("0 */3 * * *", "Europe/Berlin", "2026-03-28"),
    ],
)
def test_the_interval_before_is_airflow_s_where_clocks_change(expression: str, timezone: str, since: str) -> None:
    timetable = CronDataIntervalTimetable(expression, timezone=timezone)
    theirs = coerce_to_core_timetable(timetable)
    restriction = TimeRestriction(pendulum.instance(datetime.fromisoformat(since)), None, catchup=True)
    first = theirs.next_dagrun_info(last_automated_data_interval=None, restriction=restriction).data_interval
    interval = first
    while interval.start < first.start + timedelta(days=4):
        later = theirs.next_dagrun_info(last_automated_data_interval=interval, restriction=restriction).data_interval
        before = interval_before(Interval(start=later.start, end=later.end), timetable)
        assert (before.start, before.end) == (interval.start, interval.end)
        interval = later


def test_an_empty_interval_is_none() -> None:
    assert interval_of(EIGHT, EIGHT) is None
    assert interval_of(None, None) is None
    assert interval_of(EIGHT, EIGHT + HOUR) == hour(0)

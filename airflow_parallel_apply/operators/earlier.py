"""The runs before one that met a gap, as Airflow knows them: whether they are still to come, and which has to run
first.

A gap ahead of a run's interval is closed by the runs of the intervals that hold it. To see which of these Airflow has
yet to run, the search goes back run by run, interval by interval, from the last transaction that is not applied to the
first. Runs behind that last one have no part in the gap, and nor have intervals there for which there is no run.

| the runs that cover the gap | this run |
|---|---|
| some are missing, or have ended | is refused, and names the interval to run first |
| all are there, and some of them run | waits for its turn, deferred |
| all are there and queued, none runs | applies the gap: while it waited, they could not start |

The last one is a backfill from the newest to the oldest: its older runs find nothing left to do.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from airflow.sdk import Context, DagRunState

from airflow_parallel_apply.operators.intervals import TICK, interval_before, leaves_no_holes
from airflow_parallel_apply.pipeline.errors import GapAhead, LeaseBusy
from airflow_parallel_apply.pipeline.model.interval import Interval, moment
from airflow_parallel_apply.task import interval_of

_MOST_RUNS: Final = 2000
"""Gone back at most; each costs the API server a request."""

_ALL: Final = "trigger the DAG without a logical date, which applies everything that is committed"

_TO_COME: Final = frozenset({DagRunState.QUEUED, DagRunState.RUNNING})


def wait_or_refuse(context: Context, gap: GapAhead) -> None:
    """Return when the run is to apply the gap. Errors: `LeaseBusy` when it has to wait, `GapAhead` when refused."""
    interval = interval_of(context.get("data_interval_start"), context.get("data_interval_end"))
    dag_run, timetable = context["dag_run"], context["dag"].timetable
    if interval is None or dag_run.logical_date is None:
        raise gap
    covered_from, logical_date, waits = min(interval.start, gap.until + TICK), dag_run.logical_date, False
    for _ in range(_MOST_RUNS):
        if covered_from <= gap.since:
            break
        earlier = _previous_run(dag_run.dag_id, logical_date)
        if earlier is None:
            raise _refusal(gap, dag_run, interval, timetable)
        logical_date = earlier.logical_date
        theirs = interval_of(earlier.data_interval_start, earlier.data_interval_end)
        if theirs is None or theirs.start >= covered_from:
            continue
        is_to_come = earlier.state in _TO_COME
        if logical_date != theirs.start and (not is_to_come or theirs.end < covered_from):
            # Triggered by hand: its interval lies before those of the runs beside it, and one of these has it.
            continue
        if theirs.end < covered_from:
            raise _refusal(gap, dag_run, interval, timetable)
        if not is_to_come:
            raise _refusal(gap, dag_run, interval, timetable, ended=earlier)
        covered_from = min(covered_from, theirs.start)
        waits = waits or earlier.state == DagRunState.RUNNING
    else:
        raise _refusal(gap, dag_run, interval, timetable)
    if waits:
        raise LeaseBusy(
            f"{gap.message}; runs of earlier intervals are under way and go first",
            hint="It waits for them.",
            generation=gap.generation,
            reach_seqno=gap.last_seqno,
        )


def _refusal(gap: GapAhead, dag_run: Any, interval: Interval, timetable: object, *, ended: Any = None) -> GapAhead:
    again = "; then clear this task with everything downstream."
    if not leaves_no_holes(timetable):
        gap.hint = f"First {_ALL}{again}"
        return gap
    first = interval_before(interval, timetable, holding=gap.since)
    last = interval_before(interval, timetable)
    gap.hint = (
        f"Run the interval {first} first: airflow backfill create --dag-id {dag_run.dag_id} "
        f"--from-date {moment(first.start)} --to-date {moment(last.start)}"
    )
    if ended is not None:
        state = getattr(ended.state, "value", ended.state)
        gap.hint += f" (with --reprocess-behavior completed), or clear the run {ended.run_id}, which is {state}"
        if ended.state == DagRunState.SUCCESS:
            gap.hint += f" (or, if its tasks leave the pipeline out, {_ALL})"
    gap.hint += again
    return gap


def _previous_run(dag_id: str, logical_date: datetime) -> Any:
    """The run with the next lower logical date, as `ti.get_previous_dagrun` finds it for the task's own run."""
    from airflow.sdk.execution_time.comms import GetPreviousDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    answer: Any = SUPERVISOR_COMMS.send(GetPreviousDagRun(dag_id=dag_id, logical_date=logical_date))
    return answer.dag_run

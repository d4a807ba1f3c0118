"""A pipeline of its own with a schedule: each hour's run applies what the source committed before that hour's end.

`CronDataIntervalTimetable` gives the runs their hours; a plain `schedule="@hourly"` would not, and a run without an
hour applies everything that is committed when it opens. Change the names, then unpause it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_parallel_apply.task_group import ParallelApply

with DAG(
    "parallel_apply_hourly",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    tags=["replication", "cdc"],
    doc_md=__doc__,
):
    ParallelApply(group_id="hourly", channels=4)

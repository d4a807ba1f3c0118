"""Pipelines with an interval of a second, since nobody can set the commit times of a real source. Staged without Spark,
whose start would be most of such a short run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, DeltaDataIntervalTimetable

from airflow_parallel_apply.operators import capture, spark
from airflow_parallel_apply.task_group import ParallelApply


@contextmanager
def local_stage(endpoint: Any, config: Any, target: Any, *, session_id: Any) -> Iterator[tuple[Any, None]]:
    from tests.support.local_stage import LocalStage

    stage = LocalStage(config.log_url, target)
    yield stage, None
    stage.close()


spark.spark_stage = local_stage
capture.begin = lambda spark: None

for name in ("forwards", "backwards", "gap"):
    with DAG(
        name,
        schedule=DeltaDataIntervalTimetable(timedelta(seconds=1)),
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        catchup=False,
        # Before the scheduler looks, so that it starts nothing by itself.
        end_date=datetime.fromisoformat(os.environ["BACKFILL_END"]),
    ):
        ParallelApply(
            group_id=name,
            prefix_group_id=False,
            target_conn_id=f"target_{name}",
            log_url=f"{os.environ['BACKFILL_LOGS']}/{name}",
            start="empty",
            channels=1,
            # With retries: a task that resumes before a busy scheduler heard of its deferral counts as failed.
            retry_delay=timedelta(seconds=2),
        )

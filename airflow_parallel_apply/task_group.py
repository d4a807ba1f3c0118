"""ParallelApply: a whole pipeline as one task group.

::

    changes_available ─▶ capture ─▶ route ─▶ open ─▶ apply (one lane each, mapped) ─▶ close
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import TaskGroup

from airflow_parallel_apply.operators import (
    CaptureOperator,
    CoordinatorOperator,
    RouterOperator,
    SparkApplyOperator,
)
from airflow_parallel_apply.sensors import ChangesAvailableSensor
from airflow_parallel_apply.sensors.changes import DEFAULT_WAIT
from airflow_parallel_apply.task import DEFAULT_RETRIES, DEFAULT_RETRY_DELAY, DEFAULT_SOURCE, DEFAULT_TARGET

_LANE_NAME = "lane {{ task.lane }} of {{ task.lanes }}"


class ParallelApply(TaskGroup):
    """Capture what the source committed, apply it to the target in parallel, in order, exactly once, stop cleanly.

    ::

        with DAG("orders", schedule="*/10 * * * *", catchup=False):
            ParallelApply(
                group_id="orders",
                pipeline="orders",
                source_conn_id="orders_db",
                target_conn_id="warehouse",
                log_url="/mnt/shared/orders_log",
                channels=8,
            )

    All parameters but the durations are templated; what they mean is said in `PipelineTask` and in the operators.
    Runs of one pipeline wait for each other at `open`, deferred, for at most `fence_timeout` each.
    With a timetable that gives data intervals a run applies what was committed before its interval's end.

    :param group_id: prefix of the task ids; `prefix_group_id=False` leaves them capture, route, open, apply, close
    :param pipeline: name of the pipeline; default: `group_id`
    :param queue: connection to the queue that steers it (``queue_conn_id`` of the operators, whose ``queue`` is the
        executor's); empty: in the target's database
    :param until: LSN where a run ends; empty: the end of its data interval, or, where it has none or an empty one,
        everything committed at the source when the run first opens
    :param wait: how long a run waits for changes before it is skipped
    :param fence_timeout: how long a run waits for one other run that owns the pipeline
    :param retries: of each task; a retried lane carries on where the channels are
    :param kwargs: anything else that a task group takes
    """

    def __init__(
        self,
        group_id: str,
        *,
        pipeline: str | None = None,
        source_conn_id: str = DEFAULT_SOURCE,
        target_conn_id: str = DEFAULT_TARGET,
        spark_conn_id: str = "",
        queue: str = "",
        log_url: str = "",
        tables: Mapping[str, Sequence[str]] | Sequence[str] | str | None = None,
        start: str = "",
        create_tables: bool | str | None = None,
        channels: int | str | None = None,
        lanes: int | str | None = None,
        partitioner: str = "",
        shard_by: Mapping[str, str] | str | None = None,
        shard_file: str = "",
        store: str = "",
        consistency: str = "",
        ddl: str = "",
        epoch_max_changes: int | str | None = None,
        until: str = "",
        wait: timedelta = DEFAULT_WAIT,
        fence_timeout: timedelta = timedelta(minutes=30),
        retries: int = DEFAULT_RETRIES,
        retry_delay: timedelta = DEFAULT_RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id, **kwargs)
        told: dict[str, Any] = {
            "pipeline": pipeline or group_id,
            "source_conn_id": source_conn_id,
            "target_conn_id": target_conn_id,
            "spark_conn_id": spark_conn_id,
            "queue_conn_id": queue,
            "log_url": log_url,
            "tables": tables,
            "start": start,
            "create_tables": create_tables,
            "channels": channels,
            "lanes": lanes,
            "partitioner": partitioner,
            "shard_by": shard_by,
            "shard_file": shard_file,
            "store": store,
            "consistency": consistency,
            "ddl": ddl,
            "epoch_max_changes": epoch_max_changes,
            "retries": retries,
            "retry_delay": retry_delay,
            "task_group": self,
            "dag": self.dag,
        }
        fenced = {**told, "fence_timeout": fence_timeout}
        changes = ChangesAvailableSensor(task_id="changes_available", wait=wait, until=until, **told)
        capture = CaptureOperator(task_id="capture", until=until, **fenced)
        route = RouterOperator(task_id="route", **fenced)
        opened = CoordinatorOperator(task_id="open", action="open", **fenced)
        apply = SparkApplyOperator.partial(
            task_id="apply",
            open_task_id=opened.task_id,
            map_index_template=_LANE_NAME,
            **{name: value for name, value in told.items() if name != "lanes"},
        ).expand_kwargs(opened.output)
        close = CoordinatorOperator(
            task_id="close",
            action="close",
            open_task_id=opened.task_id,
            apply_task_id=apply.task_id,
            **fenced,
        )
        changes >> capture >> route >> opened >> apply >> close

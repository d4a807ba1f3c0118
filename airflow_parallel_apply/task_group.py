"""ParallelApply: a whole pipeline as one task group.

::

    changes_available ─▶ capture ─▶ route ─▶ open ─▶ apply (one lane each, mapped) ─▶ close
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import TaskGroup, TriggerRule

from airflow_parallel_apply.operators import (
    CaptureOperator,
    CoordinatorOperator,
    RouterOperator,
    SparkApplyOperator,
)
from airflow_parallel_apply.operators.once import require_alone_in_dag
from airflow_parallel_apply.sensors import ChangesAvailableSensor

_LANE_NAME: Final = "lane {{ task.lane }} of {{ task.lanes }}"
_TASKS: Final = ("changes_available", "capture", "route", "open", "apply", "close")
_ALL: Final = "*"
_FIXED: Final = frozenset(
    {"task_id", "task_group", "dag", "action", "open_task_id", "apply_task_id", "trigger_rule", "lane"}
)


class ParallelApply(TaskGroup):
    """A whole pipeline: captures what the source committed, applies it in parallel, in order, exactly once, and stops
    cleanly.

        with DAG("orders", schedule="*/10 * * * *", catchup=False):
            ParallelApply(
                group_id="orders",
                pipeline="orders",
                source_conn_id="orders_db",
                target_conn_id="warehouse",
                log_url="/mnt/shared/orders_log",
                channels=8,
            )

    All parameters except the durations are templated. `PipelineTask` describes those that are not listed here.
    Runs of one pipeline wait for each other at `open`, deferred, for at most `lease_timeout` each. One run of a DAG
    applies a pipeline once: a second group of the same pipeline and target is refused.
    With a timetable that gives data intervals, a run applies what was committed before its interval's end.

    A parameter that is not given here comes from `default_args` of the group or its DAG, then from the operators. Of
    `trigger_rule` only the first task takes notice: with ``none_failed`` a group behind another one runs even if that
    had nothing to do, so that Airflow skipped it.

    :param group_id: prefix of the task ids; `prefix_group_id=False` leaves them capture, route, open, apply, close
    :param pipeline: name of the pipeline; default: `group_id`
    :param queue: connection to the queue that steers the pipeline (``queue_conn_id`` of the operators, whose ``queue``
        is the executor's); empty: in the ledger's database
    :param until: offset at which a run ends, in the source's form (an LSN, such as 0/16B3748); empty: the end of its
        data interval, or, if it has none or an empty one, everything committed at the source when the run first opens
    :param wait: how long a run waits for changes before it is skipped
    :param lease_timeout: how long a run waits for one other run that owns the pipeline
    :param retries: retries of each task; a retried lane continues where the channels are
    :param retry_delay: time between two tries of a task
    :param pool: Airflow pool of each task
    :param outlets: assets that `close` updates once it has seen a clean shutdown
    :param operator_args: further arguments of single tasks, by task name without the group's prefix, or ``*`` for all:
        ``{"apply": {"pool": "spark"}, "*": {"executor_config": {...}}}``; a task's own win over those of ``*``
    :param kwargs: anything else that a task group takes
    """

    def __init__(
        self,
        group_id: str,
        *,
        pipeline: str | None = None,
        source_conn_id: str | None = None,
        target_conn_id: str | None = None,
        spark_conn_id: str | None = None,
        queue: str | None = None,
        ledger_conn_id: str | None = None,
        router_conn_id: str | None = None,
        log_url: str | None = None,
        log_directory: str | None = None,
        slot: str | None = None,
        tables: Mapping[str, Sequence[str]] | Sequence[str] | str | None = None,
        start: str | None = None,
        create_tables: bool | str | None = None,
        channels: int | str | None = None,
        lanes: int | str | None = None,
        partitioner: str | None = None,
        shard_by: Mapping[str, str] | str | None = None,
        shard_file: str | None = None,
        store: str | None = None,
        consistency: str | None = None,
        epoch_protocol: str | None = None,
        ddl: str | None = None,
        epoch_max_changes: int | str | None = None,
        error_values: bool | str | None = None,
        until: str | None = None,
        wait: timedelta | None = None,
        lease_timeout: timedelta | None = None,
        retries: int | None = None,
        retry_delay: timedelta | None = None,
        pool: str | None = None,
        outlets: Sequence[Any] | None = None,
        operator_args: Mapping[str, Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id, **kwargs)
        own: dict[str, Any] = {
            "pipeline": pipeline or group_id,
            "source_conn_id": source_conn_id,
            "target_conn_id": target_conn_id,
            "spark_conn_id": spark_conn_id,
            "queue_conn_id": queue,
            "ledger_conn_id": ledger_conn_id,
            "router_conn_id": router_conn_id,
            "log_url": log_url,
            "log_directory": log_directory,
            "slot": slot,
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
            "epoch_protocol": epoch_protocol,
            "ddl": ddl,
            "epoch_max_changes": epoch_max_changes,
            "error_values": error_values,
        }
        more = dict(operator_args or {})
        _check_operator_args(more, {*own, "until", "wait", "lease_timeout"})

        def arguments(name: str, **others: Any) -> dict[str, Any]:
            """Everything for a task; what nobody gave is left to its defaults."""
            given = {**own, "retries": retries, "retry_delay": retry_delay, "pool": pool, **others}
            placed: dict[str, Any] = {"task_id": name, "task_group": self, "dag": self.dag}
            # The first task's is the author's, for a group behind a branch; close judges by what the others' mean.
            if name != _TASKS[0]:
                placed["trigger_rule"] = TriggerRule.ALL_DONE if name == _TASKS[-1] else TriggerRule.ALL_SUCCESS
            present = {key: value for key, value in given.items() if value is not None}
            return {**present, **more.get(_ALL, {}), **more.get(name, {}), **placed}

        changes = ChangesAvailableSensor(**arguments("changes_available", wait=wait, until=until))
        capture = CaptureOperator(**arguments("capture", until=until, lease_timeout=lease_timeout))
        route = RouterOperator(**arguments("route", lease_timeout=lease_timeout))
        opened = CoordinatorOperator(action="open", **arguments("open", until=until, lease_timeout=lease_timeout))
        require_alone_in_dag(opened)
        lane = arguments("apply", map_index_template=_LANE_NAME)
        # Each lane gets its own from `open`.
        lane.pop("lanes", None)
        apply = SparkApplyOperator.partial(open_task_id=opened.task_id, **lane).expand_kwargs(opened.output)
        close = CoordinatorOperator(
            action="close",
            open_task_id=opened.task_id,
            apply_task_id=apply.task_id,
            **arguments("close", lease_timeout=lease_timeout, outlets=outlets),
        )
        changes >> capture >> route >> opened >> apply >> close


def _check_operator_args(given: Mapping[str, Mapping[str, Any]], own: set[str]) -> None:
    """Errors: `ValueError`. The tasks of a pipeline must be told the same of it, and stand where they stand."""
    unknown = sorted(given.keys() - {*_TASKS, _ALL})
    if unknown:
        raise ValueError(f"operator_args: {', '.join(unknown)} is no task; there are {', '.join(_TASKS)}, and {_ALL}")
    for name, arguments in given.items():
        refused = sorted(arguments.keys() & {*own, *_FIXED})
        if refused:
            raise ValueError(
                f"operator_args: {', '.join(refused)} of {name} cannot be given for one task; what a pipeline is told, "
                "give to ParallelApply itself"
            )

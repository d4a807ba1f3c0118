"""The frame of every task of a pipeline: its settings, and its end, with one line for an error and red when killed.

SIGTERM calls `on_kill` and then lets `execute` go on; a normal return would turn the task green. So `on_kill` sets a
flag and interrupts the work, and `execute` raises whatever the work made of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import uuid4

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_parallel_apply.hooks import connections, parameters
from airflow_parallel_apply.owner import owner_of
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint, StoreName
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, ParallelApplyError
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.stream.address import log_at_router
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured
from airflow_parallel_apply.service.address import is_service
from airflow_parallel_apply.spark.endpoint import SparkEndpoint

DEFAULT_SOURCE: Final = "parallel_apply_source"
DEFAULT_TARGET: Final = "parallel_apply_target"
DEFAULT_RETRIES: Final = 2
DEFAULT_RETRY_DELAY: Final = timedelta(seconds=10)

_CONNECTIONS: Final = (
    "source_conn_id",
    "target_conn_id",
    "spark_conn_id",
    "queue_conn_id",
    "ledger_conn_id",
    "router_conn_id",
)

ERROR_KEY: Final = "error"
"""XCom of a failed task: its error in one line, for `close` to name."""

SKIPPED_KEY: Final = "skipped"
"""XCom of a sensor that skipped its run: the reason, for `close` to tell it from a run that was ended from outside."""

_MARK_KEY: Final = "run_mark"

_CANCEL_SECONDS: Final = 4.0
"""SIGKILL follows SIGTERM by five seconds."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The run that asks, and its data interval, if it has one. `run_id` freezes a run's bounds (law 11); `owner` holds
    its lease, across deployments.
    """

    run_id: str
    owner: str
    interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A task's settings, checked: the edge where parameters and connections become values."""

    config: PipelineConfig
    source: Endpoint
    target: Endpoint
    spark: SparkEndpoint
    queue: QueueEndpoint | None
    """None: in the ledger's database."""


def run_identity(context: Context) -> RunIdentity:
    """The same for a task's retries and clears. Another task's has another `run_id`, where the run has no interval."""
    return RunIdentity(run_id=lasting_run_id(context), owner=run_owner(context), interval=_interval(context))


def run_owner(context: Context) -> str:
    """The same for every task of a DAG run, and for the run's retries and clears."""
    return owner_of(_named(context))


def lasting_run_id(context: Context) -> str:
    """The run's id, with a mark of its own. A run that was deleted may leave its id to another one, even at the same
    tick, as of a DAG that comes back or in another deployment. That has other work to do, unless both have an interval.
    What Airflow keeps for a task, through retries and clears, goes with its run, and so tells the two apart.
    """
    if _interval(context):
        return _named(context)
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    store = context["task_state_store"]
    mark = store.get(_MARK_KEY)
    if mark is None:
        mark = uuid4().hex
        store.set(_MARK_KEY, mark, retention=NEVER_EXPIRE)
    return f"{_named(context)}#{mark}"


def _named(context: Context) -> str:
    return f"{context['ti'].dag_id}/{context['run_id']}"


def _interval(context: Context) -> Interval | None:
    return interval_of(context.get("data_interval_start"), context.get("data_interval_end"))


def interval_of(start: datetime | None, end: datetime | None) -> Interval | None:
    """The data interval of a DAG run; None where it has none, or an empty one, as most timetables give."""
    return None if start is None or end is None or start >= end else Interval(start=start, end=end)


def settings(
    values: Mapping[str, object],
    source_conn_id: str,
    target_conn_id: str,
    spark_conn_id: str,
    queue_conn_id: str,
    ledger_conn_id: str,
    router_conn_id: str = "",
) -> Settings:
    """Build them from rendered values. Errors: `ConfigurationError`, which names the parameter or the connection."""
    config = parameters.pipeline_config(values)
    router = connections.pipeline_router(router_conn_id)
    if router is not None:
        config = replace(config, router=router, log_url=log_at_router(config.log_url, router.url))
    found = connections.spark(spark_conn_id)
    if config.store is StoreName.MEMORY and not found.is_embedded and not (config.router or is_service(config.log_url)):
        raise ConfigurationError(
            "store: 'memory' needs a router that Spark's executors reach, and spark_conn_id is not empty",
            hint=f"Name one with router_conn_id, a connection of type {connections.ROUTER_TYPE}.",
        )
    return Settings(
        config=config,
        source=connections.database(source_conn_id, parameter="source_conn_id"),
        target=connections.target(target_conn_id, ledger_conn_id),
        spark=found,
        queue=connections.pipeline_queue(queue_conn_id),
    )


class Guarded:
    """The end of a task: one line for an error, red when killed. A mixin of operators, in front of their base."""

    pipeline: str | None = None
    """The one that errors name."""
    _killed = False

    @property
    def killed(self) -> bool:
        """True once Airflow has asked this task to end."""
        return self._killed

    def guarded(self, context: Context, work: Callable[[], Result]) -> Result:
        """Run the work of `execute`: errors in one line, with retries only where a retry can help."""
        try:
            result = work()
        except (ParallelApplyError, QueueError) as error:
            if isinstance(error, ParallelApplyError):
                error.at(pipeline=self.pipeline or None)
            if self._killed:
                raise AirflowException(f"cancelled: {error}") from None
            context["ti"].xcom_push(ERROR_KEY, str(error))
            for_good = isinstance(error, FatalError | QueueMisconfigured)
            raise (AirflowFailException if for_good else AirflowException)(str(error)) from None
        except AirflowException:
            raise
        except Exception as error:
            context["ti"].xcom_push(ERROR_KEY, f"{type(error).__name__}: {error}")
            raise
        if self._killed:
            raise AirflowException("cancelled: Airflow asked this task to end")
        return result

    def cancel(self) -> None:
        """Interrupt what is running; called on a thread of its own."""

    def on_kill(self) -> None:
        """Set the flag and interrupt the work; whatever it holds, leave before SIGKILL comes."""
        self._killed = True
        # The handler runs on the main thread, which may hold a lock that `cancel` wants: never wait for it here.
        thread = threading.Thread(target=self.cancel, name="cancel", daemon=True)
        thread.start()
        thread.join(_CANCEL_SECONDS)


class PipelineTask(Guarded, BaseOperator):
    """Base of the operators and the sensor. All of these fields are templated and may be text.

    :param pipeline: name of the pipeline, under which the target keeps its positions, plan and lease
    :param source_conn_id: connection of type postgres to capture from
    :param target_conn_id: connection to apply to: of type postgres, or of another target (parallel_apply_mariadb,
        …_delta, …_files, …_kafka), which needs a ledger_conn_id
    :param spark_conn_id: connection of type spark (a cluster's master) or spark_connect; empty: an embedded local Spark
    :param queue_conn_id: connection of type parallel_apply_queue (a queue service, or PostgreSQL) or postgres to the
        queue that steers the pipeline; empty: in the ledger's database
    :param ledger_conn_id: connection of type postgres to the database that keeps the pipeline's ledger: owner, routing,
        run bounds, plan; empty: the target's
    :param router_conn_id: connection of type parallel_apply_router to the router that serves log_url, which needs no
        token then, and that holds the rows with ``store=memory``; empty: with that store an embedded one on the host of
        the task ``route``
    :param log_url: directory of the log, seen by every worker; or a router's log, ``grpcs://:token@host:port/name``;
        empty: below AIRFLOW_HOME
    :param log_directory: with a router's log_url: the log's directory, which only the task capture has to see
    :param slot: name of slot and publication at the source, which all pipelines of one log share; empty:
        ``parallel_apply_`` and the pipeline's name
    :param tables: ``{"include": [...], "exclude": [...]}``, patterns over ``schema.table``
    :param start: what the first run does or finds: ``copy``, ``empty`` or ``equal``
    :param create_tables: with ``start=copy``: create tables that the target lacks, as the source has them
    :param channels: ordered lanes of apply, 1 to 64
    :param lanes: mapped tasks at a time; 0: as many as channels, at most 8
    :param partitioner: how rows find their channel: ``key``, ``shard``, ``shard_list``, ``round_robin``, or an
        installed one's name
    :param shard_by: with shards: an expression such as ``tenant_id``, or ``{"public.*": "tenant_id"}``
    :param shard_file: with ``shard_list``: the file that assigns shards to channels
    :param store: where a channel's events wait: ``log``, ``channel_log``, ``memory``, or ``auto``: the
        one that the partitioner reads least with
    :param consistency: when changes become visible: ``channel`` or ``epoch``
    :param epoch_protocol: with ``epoch``: ``auto``, ``leader_merge`` or ``two_phase``
    :param ddl: what a DDL message and a change of columns do: ``refuse``, ``apply`` or ``skip``
    :param epoch_max_changes: changes after which an epoch is closed
    :param error_values: whether errors quote the values of rows that the target refused
    """

    template_fields: Sequence[str] = (*parameters.NAMES, *_CONNECTIONS)
    ui_color = "#dcefe7"

    pipeline: str

    def __init__(
        self,
        *,
        pipeline: str,
        source_conn_id: str = DEFAULT_SOURCE,
        target_conn_id: str = DEFAULT_TARGET,
        spark_conn_id: str = "",
        queue_conn_id: str = "",
        ledger_conn_id: str = "",
        router_conn_id: str = "",
        log_url: str = "",
        log_directory: str = "",
        slot: str = "",
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
        epoch_protocol: str = "",
        ddl: str = "",
        epoch_max_changes: int | str | None = None,
        error_values: bool | str | None = None,
        retries: int = DEFAULT_RETRIES,
        retry_delay: timedelta = DEFAULT_RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.pipeline = pipeline
        self.source_conn_id = source_conn_id
        self.target_conn_id = target_conn_id
        self.spark_conn_id = spark_conn_id
        self.queue_conn_id = queue_conn_id
        self.ledger_conn_id = ledger_conn_id
        self.router_conn_id = router_conn_id
        self.log_url = log_url
        self.log_directory = log_directory
        self.slot = slot
        self.tables = tables
        self.start = start
        self.create_tables = create_tables
        self.channels = channels
        self.lanes = lanes
        self.partitioner = partitioner
        self.shard_by = shard_by
        self.shard_file = shard_file
        self.store = store
        self.consistency = consistency
        self.epoch_protocol = epoch_protocol
        self.ddl = ddl
        self.epoch_max_changes = epoch_max_changes
        self.error_values = error_values
        parameters.check_literals(self.parameters)

    @property
    def parameters(self) -> dict[str, object]:
        """The rendered pipeline parameters, JSON as they are."""
        return {name: getattr(self, name) for name in parameters.NAMES}

    def settings(self) -> Settings:
        """All of it, in every task, so that a wrong one is refused before anything starts."""
        return settings(
            self.parameters,
            self.source_conn_id,
            self.target_conn_id,
            self.spark_conn_id,
            self.queue_conn_id,
            self.ledger_conn_id,
            self.router_conn_id,
        )

"""The Spark behind a run: the user's Connect server, applications on a cluster, or the embedded server of the host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.spark.endpoint import SparkEndpoint

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.apply.report import LaneReport
    from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
    from airflow_parallel_apply.pipeline.apply.stage import Stage
    from airflow_parallel_apply.pipeline.run import OpenedRun
    from airflow_parallel_apply.spark.submitted.messages import LaneWork
    from airflow_parallel_apply.task import Settings

_logger = logging.getLogger(__name__)


class LaneRunner(Protocol):
    """A lane, wherever it runs."""

    def run(self, signals: LaneSignals, show_ui: Callable[[str], None]) -> LaneReport:
        """Run the lane to its end. `show_ui` is called with the address of Spark's pages, if that is known."""
        ...

    def cancel(self) -> None:
        """Interrupt it; `run` then raises. Callable from any thread."""
        ...


def lane_runner(settings: Settings, opened: OpenedRun, lane: int) -> LaneRunner:
    """In this process, beside a Spark Connect server; or in the driver of an application on the cluster."""
    from airflow_parallel_apply.spark.submitted.lane import SubmittedLane
    from airflow_parallel_apply.spark.submitted.messages import LaneWork

    work = LaneWork(
        opened=opened,
        config=settings.config,
        source=settings.source,
        target=settings.target,
        queue=settings.queue,
        lane=lane,
    )
    return (
        SubmittedLane(settings.spark.cluster, work)
        if settings.spark.cluster is not None
        else _LaneHere(settings.spark, work)
    )


@contextmanager
def spark_stage(
    spark: SparkEndpoint, config: PipelineConfig, target: Endpoint, *, session_id: Callable[[str | None], str]
) -> Iterator[tuple[Stage, str | None]]:
    """A stage in the run's shared session, and the address of Spark's pages where it is known. `session_id`: as
    `ConnectAccess` asks for it.
    """
    from airflow_parallel_apply.spark.session import ConnectAccess
    from airflow_parallel_apply.spark.stage import open_stage

    with ExitStack() as servers:
        _, ui_url = servers.enter_context(_server(spark))

        def url() -> str:
            # Asked anew for each session that opens: an embedded server that died comes back at another port.
            return servers.enter_context(_server(spark))[0]

        stage = open_stage(access=ConnectAccess(url=url, session_id=session_id), config=config, target=target)
        servers.callback(stage.close)
        yield stage, ui_url


class _LaneHere:
    """Implements `LaneRunner` in the task itself, in the run's shared session."""

    def __init__(self, spark: SparkEndpoint, work: LaneWork) -> None:
        self._spark = spark
        self._work = work
        self._stage: Stage | None = None

    def run(self, signals: LaneSignals, show_ui: Callable[[str], None]) -> LaneReport:
        from airflow_parallel_apply.pipeline.run import apply, shared_session

        work = self._work

        def session_id(closed: str | None) -> str:
            found = shared_session(work.opened, work.config, work.target, work.queue, make=True, closed=closed)
            return found or str(uuid4())

        with spark_stage(self._spark, work.config, work.target, session_id=session_id) as (stage, ui_url):
            self._stage = stage
            if ui_url is not None:
                show_ui(ui_url)
            return apply(
                work.opened,
                work.config,
                work.source,
                work.target,
                queue=work.queue,
                lane=work.lane,
                stage=stage,
                signals=signals,
            )

    def cancel(self) -> None:
        if self._stage is not None:
            self._stage.cancel()


def begin(spark: SparkEndpoint) -> None:
    """Refuse a host without Java first, and start the embedded server beside the run's first steps. Applications on a
    cluster have their driver here, so they need Java as well.

    The server is detached: it goes on when this process ends, and ends by itself when no lane comes.
    """
    if spark.url is not None:
        return
    from airflow_parallel_apply.spark.java import find_java

    find_java()
    if not spark.is_embedded:
        return
    # Whole, before a second thread imports it: two that begin with different parts of it may find it half made.
    import pyspark.sql.types  # noqa: F401

    threading.Thread(target=_start_embedded, name="start spark", daemon=True).start()


def _start_embedded() -> None:
    from airflow_parallel_apply.spark.server import connect_server

    try:
        with connect_server():
            pass
    except ParallelApplyError as error:
        # The lanes will say so, if it lasts.
        _logger.warning("the embedded Spark did not start yet: %s", error)


@contextmanager
def session_for_lanes(spark: SparkEndpoint, config: PipelineConfig, target: Endpoint) -> Iterator[str]:
    """The id of a session of workers that were checked: see `check_workers`. It ends with an error of the block, after
    which no lane comes.
    """
    session_id = check_workers(spark, config, target)
    try:
        yield session_id
    except ParallelApplyError:
        if spark.url is not None:
            with suppress(ParallelApplyError):
                release(spark, session_id)
        raise


def check_workers(spark: SparkEndpoint, config: PipelineConfig, target: Endpoint) -> str:
    """Refuse a cluster whose executors do not reach the target, see the log or have this package. Returns the id of the
    session that it was asked in. The embedded server's workers are of this host, user and Python: they are not asked.
    """
    session_id = str(uuid4())
    if spark.url is not None:
        from airflow_parallel_apply.spark.preflight import require_workers

        require_workers(spark.url, session_id, config.log_url, target)
    return session_id


def release(spark: SparkEndpoint, session_id: str) -> None:
    """End the run's session for all its clients, and with it what a killed lane left running there.

    The embedded server is asked only where one runs: it ends by itself, and its sessions with it, like an application
    on a cluster.
    """
    from airflow_parallel_apply.spark.layout import server_layout
    from airflow_parallel_apply.spark.session import release_session

    if spark.cluster is not None or (spark.is_embedded and server_layout().read_state() is None):
        return
    with _server(spark) as (url, _):
        release_session(url, session_id)


@contextmanager
def _server(spark: SparkEndpoint) -> Iterator[tuple[str, str | None]]:
    from airflow_parallel_apply.spark.server import connect_server

    if spark.url is not None:
        yield spark.url, None
        return
    with connect_server() as lease:
        yield lease.url, lease.ui_url

"""The Spark behind a run: the user's Connect server, or the embedded one of the worker's host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from airflow_parallel_apply.hooks.connections import SparkEndpoint
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.apply.stage import Stage

_logger = logging.getLogger(__name__)


@contextmanager
def spark_stage(
    spark: SparkEndpoint, config: PipelineConfig, target: Endpoint, *, session_id: str
) -> Iterator[tuple[Stage, str | None]]:
    """A stage in the run's shared session, and the address of Spark's pages where it is known."""
    from airflow_parallel_apply.spark.stage import SparkStage

    with ExitStack() as servers:
        _, ui_url = servers.enter_context(_server(spark))

        def url() -> str:
            # Asked anew for each session that opens: an embedded server that died comes back at another port.
            return servers.enter_context(_server(spark))[0]

        stage = SparkStage(url=url, session_id=session_id, config=config, target=target)
        servers.callback(stage.close)
        yield stage, ui_url


def begin(spark: SparkEndpoint) -> None:
    """Refuse a host without Java before anything moves, and start the embedded server beside the run's first steps.

    The server is detached: it goes on when this process ends, and ends by itself when no lane comes.
    """
    if spark.url is not None:
        return
    from airflow_parallel_apply.spark.java import find_java

    find_java()
    threading.Thread(target=_start_embedded, name="start spark", daemon=True).start()


def _start_embedded() -> None:
    from airflow_parallel_apply.pipeline.errors import ParallelApplyError
    from airflow_parallel_apply.spark.server import connect_server

    try:
        with connect_server():
            pass
    except ParallelApplyError as error:
        # The lanes will say so, if it lasts.
        _logger.warning("the embedded Spark did not start yet: %s", error)


def check_workers(spark: SparkEndpoint, config: PipelineConfig, target: Endpoint) -> str:
    """Refuse a cluster whose executors do not reach the target, see the log or have this package. Returns the id of the
    session that it was asked in. The embedded server's workers are of this host, user and Python: they are not asked.
    """
    from uuid import uuid4

    session_id = str(uuid4())
    if spark.url is not None:
        from airflow_parallel_apply.spark.preflight import require_workers

        require_workers(spark.url, session_id, config.log_url, target)
    return session_id


def release(spark: SparkEndpoint, session_id: str) -> None:
    """End the run's session for all its clients, and with it what a killed lane left running there.

    The embedded server is asked only where one runs: it ends by itself, and its sessions with it.
    """
    from airflow_parallel_apply.spark.layout import server_layout
    from airflow_parallel_apply.spark.session import release_session

    if spark.url is None and server_layout().read_state() is None:
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

"""Sessions of Spark Connect, shared by the lanes of one run.

Clients that name the same user and session id share the server's session and its warm Python workers, from any
process: a lane's first job then costs under a second, not several. So a run generation has one session id; the lanes
only close their channel, and `release_session` (by the task that closes the run) ends it for all. An id that was
released, or of a session that was idle for too long, stays dead: `open_session` then raises `SessionClosed`, and the
caller needs a new id.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
from collections.abc import Callable, Iterator
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError, SessionClosed, Unavailable
from airflow_parallel_apply.spark.faults import spark_errors

BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 32 * 2**20
"""Bounds, together with the row count, what crosses from the JVM to a Python worker at once."""

BATCH_LIMIT: Final = "spark.sql.execution.arrow.maxBytesPerBatch"

UNMEASURED_BATCHES: Final = {BATCH_LIMIT: str(2**31 - 1)}
"""The default of servers and applications of our own. With any other value Spark asks for a batch's size after each
row, which is a fifth of what a row costs. No session gets this value later, since lanes that share one may be at
different rows: one with which wide rows may come is measured for the rest of its life, see `measure_batches`.
"""

# Whole-stage code generation writes a unit's bounds into the code that it makes, so that every unit's code is new and
# runs cold: a quarter more processor time than without it.
SESSION_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
    "spark.sql.parquet.filterPushdown": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.sql.codegen.wholeStage": "false",
    # A union of parts that are one partition each would be one partition, too.
    "spark.sql.unionOutputPartitioning": "false",
}
"""Set in every session, since a server of the user's own knows nothing of these jobs."""

# A server that stands still answers no ping: its calls end then, instead of waiting for ever. More often than once in
# five minutes a server takes for an attack.
KEEPALIVE: Final = {
    "grpc.keepalive_time_ms": 310_000,
    "grpc.keepalive_timeout_ms": 20_000,
}

_RETRIES: Final = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 3, "max_backoff": 2_000}


def open_session(url: str, session_id: str) -> Any:
    """A client (`pyspark.sql.connect.session.SparkSession`) of the server's session `session_id`, a UUID.

    The caller closes it with `close_session`. Never the process's active session, so that a lane may live beside a
    user's own Spark code. Errors: `Unavailable` when the server does not answer within seconds, `SessionClosed` when it
    has closed the session, `ConfigurationError` for a wrong URL or token. Later calls raise `Unavailable` too when the
    server has not given a sign of life for five minutes.
    """
    from pyspark.errors import PySparkValueError
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    try:
        channel = DefaultChannelBuilder(_session_url(url, session_id), list(KEEPALIVE.items()))
        session = SparkSession(connection=channel)
    except PySparkValueError as error:
        raise ConfigurationError(
            "this Spark Connect URL is not usable", op="spark", hint="It looks like sc://host:15002/;token=…"
        ) from error
    session.release_session_on_close = False
    # Its exit hook runs a last command on the server, and hangs when the threads that it needs are gone already.
    atexit.unregister(session.client._on_exit)
    # Spark's own policy waits ten minutes for a server that is gone; a lane has a lease to keep.
    session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
    try:
        with spark_errors("open a Spark session"):
            session.conf._set_all(configs=dict(SESSION_SETTINGS), silent=False)
    except BaseException:
        close_session(session)
        raise
    return session


class ConnectAccess:
    """Implements `SparkAccess` for one of the clients of a server's session."""

    def __init__(self, *, url: str | Callable[[], str], session_id: str | Callable[[str | None], str]) -> None:
        """`url`: of Spark Connect, or what tells it now: an embedded server that died is another one afterwards.
        `session_id`: or what tells it when a session is opened, given the id that the server has closed, if it has.
        """
        self._url = url
        self._session_id = session_id

    def open(self) -> Any:
        if isinstance(self._session_id, str):
            return self._opened(self._session_id)
        session_id = self._session_id(None)
        try:
            return self._opened(session_id)
        except SessionClosed:
            return self._opened(self._session_id(session_id))

    def close(self, session: Any) -> None:
        close_session(session)

    @contextlib.contextmanager
    def tagged(self, session: Any, tag: str) -> Iterator[None]:
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)

    def interrupt(self, session: Any, tag: str) -> None:
        interrupt(session, tag)

    def _opened(self, session_id: str) -> Any:
        return open_session(self._url if isinstance(self._url, str) else self._url(), session_id)


def leave_unmeasured(session: Any) -> None:
    """Have a server of the user's own treat a new session, which nobody else knows yet, as ours does."""
    with spark_errors("open a Spark session"):
        session.conf._set_all(configs=dict(UNMEASURED_BATCHES), silent=False)


def measure_batches(session: Any) -> None:
    """Have batches bounded by their bytes, not by the number of their rows alone, for all who share the session."""
    with spark_errors("bound batches"):
        session.conf.set(BATCH_LIMIT, str(BATCH_BYTES))


def close_session(session: Any) -> None:
    """Give up this client's channel; the server's session and its Python workers stay for the others."""
    session.client.close()


def release_session(url: str, session_id: str) -> None:
    """End the server's session for all its clients. Quiet when the server or the session is gone already."""
    with contextlib.suppress(Unavailable):
        session = open_session(url, session_id)
        try:
            with spark_errors("release a Spark session"):
                session.client.release_session()
        finally:
            close_session(session)


def warm_up(session: Any, workers: int = 2) -> None:
    """Start up to `workers` of the session's Python workers: their start and imports cost seconds, once."""
    from airflow_parallel_apply.spark.worker import warm

    with spark_errors("warm up Spark"):
        session.range(0, workers, 1, workers).mapInArrow(warm, "ready boolean").toArrow()


def register_source(session: Any, source: type[Any]) -> None:
    """Make a Python data source known to the server's session, where another of its clients may do so at this moment.

    The server looks the name up and then registers it: of two clients the later one may be told that the name exists
    already. All clients of a session register the same class, so that this is what it asked for.
    """
    from pyspark.errors import PySparkException

    with spark_errors("register a data source"):
        try:
            session.dataSource.register(source)
        except PySparkException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def interrupt(session: Any, tag: str) -> None:
    """End the jobs that bear the tag, whichever client started them."""
    with spark_errors("interrupt a Spark job"):
        session.interruptTag(tag)


def _session_url(url: str, session_id: str) -> str:
    base = url if ";" in url else f"{url.rstrip('/')}/"
    user = "" if "user_id=" in url else f";user_id={getpass.getuser()}"
    return f"{base}{user};session_id={session_id}"

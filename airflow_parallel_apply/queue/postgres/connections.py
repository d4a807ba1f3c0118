"""Connections that threads check out one at a time, and what the database's errors mean to a queue's caller."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from airflow_parallel_apply.postgres.keepalive import WAITING
from airflow_parallel_apply.postgres.logins import LOGIN_HINT, refuses_login
from airflow_parallel_apply.postgres.pooler import POOLER_FOUND, shares_sessions
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN, POOLER_HINT, SettingsLost, settle
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured, QueueUnavailable
from airflow_parallel_apply.queue.postgres.answering import Unanswered, connect
from airflow_parallel_apply.queue.postgres.statements import SCHEMA_VERSION, Statements

APPLICATION_NAME: Final = "parallel_apply queue"

_DEFAULTS: Final = {"connect_timeout": "10", **WAITING}

_BRIEF: Final = {"idle_in_transaction_session_timeout": "10s"}
"""Ends the transaction of a client that was stopped in the middle of a modify, whose locks hide tasks from others."""

_SILENCE_HINT: Final = (
    "Does what stands between here and the server (a proxy, a load balancer, a firewall) swallow what is sent? If the "
    f"server's pg_stat_activity has the statement (application_name '{APPLICATION_NAME}'), it waits for somebody there."
)

Connection = psycopg.Connection[tuple[Any, ...]]


class Connections:
    """Idle connections to one database. Each call uses one; as many are open as calls ran at the same time.

    Errors: `QueueUnavailable` when the server cannot be reached or a connection was lost (then all idle ones are
    dropped, so that the next call starts afresh), `QueueMisconfigured` for what retrying cannot fix.
    """

    def __init__(self, dsn: str, statements: Statements, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._conninfo = conninfo(dsn)
        self._statements = statements
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False
        self._has_own_sessions = False
        """True once a session that listens was found to be the caller's alone, or nothing could be found."""

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """A connection in autocommit, for one call."""
        connection = self._take()
        try:
            yield connection
        except psycopg.Error as error:
            raise self._translated(connection, error) from error
        finally:
            self._give(connection)

    @contextmanager
    def listen(self) -> Iterator[Connection]:
        """As `use`, hearing what modifies announce, from before the first statement of the caller."""
        channel = sql.Identifier(self._statements.channel)
        with self.use() as connection:
            self._require_own_session(connection)
            connection.execute(sql.SQL("LISTEN {}").format(channel))
            try:
                yield connection
            finally:
                # An idle connection that went on listening would fill up with what nobody reads.
                with suppress(psycopg.Error):
                    connection.execute(sql.SQL("UNLISTEN {}").format(channel))

    def _require_own_session(self, connection: Connection) -> None:
        """Once, since what stands in between stays. Errors: `QueueMisconfigured`."""
        if self._has_own_sessions:
            return
        require_own_session(connection, self._conninfo)
        self._has_own_sessions = True

    def check_open(self) -> None:
        """Raise when the queue was closed, by whichever thread."""
        if self._closed:
            raise QueueError("this queue was closed")

    def close(self) -> None:
        """Close the idle ones now, the others when their calls end."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    def _take(self) -> Connection:
        with self._lock:
            self.check_open()
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give(self, connection: Connection) -> None:
        with self._lock:
            reusable = not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE
            if reusable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self) -> Connection:
        try:
            connection = connect(self._conninfo, clock=self._clock)
        except psycopg.OperationalError as error:
            if refuses_login(str(error)):
                raise QueueMisconfigured(
                    f"the queue's database refuses the login: {line(error)}. Hint: {LOGIN_HINT}"
                ) from error
            raise QueueUnavailable(f"the queue's database cannot be reached: {line(error)}") from error
        try:
            # A value comes as its text, which `rows.to_task` reads in a third of the calls.
            connection.adapters.register_loader("json", TextLoader)
            prepare_session(connection)
            check_version(connection, self._statements)
        except psycopg.Error as error:
            translated = self._translated(connection, error)
            connection.close()
            raise translated from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _translated(self, connection: Connection, error: psycopg.Error) -> QueueError:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            # The server was, or became, a standby; another one may be the primary at the next call.
            connection.close()
            self._drop_idle()
            return translated(error, self._statements.schema)
        if connection.closed:
            self._drop_idle()
            if isinstance(error, Unanswered):
                return translated(error, self._statements.schema)
            return QueueUnavailable(f"the connection to the queue's database was lost: {line(error)}")
        return translated(error, self._statements.schema)


def conninfo(dsn: str) -> str:
    """The DSN with our name, and with limits where it sets none."""
    try:
        given = {key: value for key, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.ProgrammingError:
        # Without its cause: libpq's message quotes the DSN, and the password with it.
        raise QueueMisconfigured(
            "the queue's DSN is not a PostgreSQL connection string. Hint: Write postgresql://user@host:port/database."
        ) from None
    return make_conninfo("", **{**_DEFAULTS, **given, "application_name": APPLICATION_NAME})


def prepare_session(connection: Connection) -> None:
    """Give a new connection the settings of a queue's. Errors: `QueueMisconfigured`; psycopg's own."""
    try:
        settle(lambda query: connection.execute(query).fetchall(), EXACT, LASTING, PLAIN, _BRIEF)
    except SettingsLost as error:
        raise QueueMisconfigured(f"the queue's database: {error}. Hint: {error.hint}") from error


def require_own_session(connection: psycopg.Connection[Any], made_by: str) -> None:
    """`made_by`: the connection string of the connection. Errors: `QueueMisconfigured` for one that a pooler shares."""
    # Of a pooler that has no session to spare nothing is known.
    with suppress(psycopg.OperationalError):
        if shares_sessions(connection, lambda: connect(made_by)):
            raise QueueMisconfigured(f"the queue's database: {POOLER_FOUND}. Hint: {POOLER_HINT}")


def check_version(connection: Connection, statements: Statements) -> None:
    """Raise unless the tables are of the version that this code was written for."""
    row = connection.execute(statements["version"]).fetchone()
    version = row[0] if row else 0
    if version != SCHEMA_VERSION:
        hint = _migrating(statements.schema) if version < SCHEMA_VERSION else "Upgrade this package."
        raise QueueMisconfigured(
            f"the queue's tables in schema {statements.schema} have version {version}, this code needs "
            f"{SCHEMA_VERSION}. Hint: {hint}"
        )


def _migrating(schema: str) -> str:
    command = f"python -m airflow_parallel_apply.queue migrate --schema {shlex.quote(schema)}"
    return f"Run `{command}` as a user who may create tables."


def translated(error: psycopg.Error, schema: str) -> QueueError:
    """Translate an error of the database whose connection is still alive."""
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return QueueMisconfigured(f"schema {schema} has no queue tables. Hint: {_migrating(schema)}")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return QueueMisconfigured(
            f"the queue's user lacks a privilege: {line(error)}. Hint: Grant it the schema {schema} and its tables."
        )
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return QueueUnavailable(
            f"the queue's database takes no writes: {line(error)}. Hint: A standby answers here: name the primary, or "
            "all servers, host=a,b with target_session_attrs=read-write."
        )
    if isinstance(error, Unanswered):
        return QueueUnavailable(f"the queue's database is reached, but {line(error)}. Hint: {_SILENCE_HINT}")
    if isinstance(error, psycopg.OperationalError):
        return QueueUnavailable(f"the queue's database cannot do this now: {line(error)}")
    return QueueError(f"the queue's database refused a statement: {line(error)}")


def line(error: psycopg.Error) -> str:
    """The first line of what the database says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""Sessions at a PostgreSQL source: one for the catalog and for what is streamed, with settings that make text exact."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, Final, LiteralString

import psycopg
import pyarrow as pa
from psycopg import capabilities
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import (
    START_ANEW,
    ConfigurationError,
    ParallelApplyError,
    SourceError,
    SourceInUse,
    Unavailable,
)
from airflow_parallel_apply.pipeline.source.postgres.answers import Answer, Answers
from airflow_parallel_apply.pipeline.source.postgres.holding import held_up_hint
from airflow_parallel_apply.pipeline.source.postgres.rights import lacking_right_hint
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.keepalive import with_keepalives
from airflow_parallel_apply.postgres.logins import LOGIN_HINT, hint_while_away, refuses_login
from airflow_parallel_apply.postgres.settings import (
    EXACT,
    LASTING,
    PLAIN,
    RESET_HINT,
    Run,
    SettingsLost,
    settle,
)
from airflow_parallel_apply.postgres.statements import statements

LOCK_TIMEOUT: Final = "30s"
_AT_SOURCE: Final = {"search_path": "", "client_connection_check_interval": "5s", "lock_timeout": LOCK_TIMEOUT}
"""Names of types are qualified wherever they are. By the second one a dead reader is noticed. A migration that is open,
or waits for a standby, holds locks that a look at the catalog takes as well: it is told then, and tried again.
"""
_ROWS_AT_ONCE: Final = 32
"""That libpq hands over together; one where it is older than version 17."""
_CONNECT_TIMEOUT_SECONDS: Final = 10

_TOO_LONG: Final = "invalid memory alloc request size"
"""The server's words for what is longer than it can ever hold; they have no code of their own."""

_TOO_LONG_HINT: Final = (
    "A value or a row is longer than 1 GB as text (a bytea: than 500 MB), and no later try can send it. Shorten it, or "
    "exclude its table."
)

_TEMPORARY_FILES: Final = "temp_file_limit"
_WAL: Final = "WAL segment"
"""Words of errors that are told by more than their codes."""

_NO_REPLICATION: Final = "unsupported startup parameter: replication"
"""The words of a PgBouncer that does not know such connections."""
_UNREACHABLE: Final = (sqlstate.CONNECTION_CLASS, "57P", sqlstate.RESOURCES_CLASS, sqlstate.ROLLBACK_CLASS)
"""57P: the server shuts down, or is not up yet."""


class Session:
    """Connects when first used, and again after a connection broke. Not thread-safe."""

    def __init__(self, endpoint: Endpoint, *, application_name: str) -> None:
        self._endpoint = endpoint
        self._application_name = application_name
        self._catalog: psycopg.Connection[Any] | None = None
        self._answers = Answers()

    @property
    def place(self) -> str:
        """Host, port and database, for people."""
        return self._endpoint.place

    def catalog(self) -> psycopg.Connection[Any]:
        """The session for short statements, in autocommit."""
        if self._catalog is None or self._catalog.closed:
            self._catalog = self.another()
        return self._catalog

    def answer(self, question: Hashable, ask: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
        """Return the catalog's answer to a question, or its answer while the same transactions were visible: see
        `Answers`. Errors: those of `ask`; psycopg's own.
        """
        return self._answers.of(self.catalog(), question, ask)

    def forget_answers(self) -> None:
        """See `Answers.forget`."""
        self._answers.forget()

    def replication(self) -> psycopg.Connection[Any]:
        """A new session that speaks the replication protocol; the caller closes it."""
        return self._connect(make_conninfo(self._conninfo(), replication="database"))

    def another(self) -> psycopg.Connection[Any]:
        """A new session like `catalog`'s; the caller closes it."""
        return self._connect(self._conninfo())

    def _connect(self, conninfo: str) -> psycopg.Connection[Any]:
        connection = psycopg.connect(conninfo, autocommit=True)
        try:
            # Without parameters, as the replication protocol takes it.
            self._settle(lambda query: connection.execute(query).fetchall())
        except BaseException:
            connection.close()
            raise
        return connection

    def _settle(self, run: Run) -> None:
        try:
            settle(run, EXACT, LASTING, PLAIN, _AT_SOURCE)
        except SettingsLost as error:
            raise ConfigurationError(f"the source {self.place}: {error}", hint=error.hint) from error

    def stream(self, query: str, *, batch_bytes: int) -> Generator[pa.BinaryArray, None, None]:
        """The rows of a query with one `bytea` column as they arrive, in batches of about so many bytes. Closing the
        generator early drops the connection, which ends the query. Memory: a batch and `_ROWS_AT_ONCE` rows.

        The session is the catalog's: who asks the catalog before the last batch is here gets another one.
        """
        reading, self._catalog = self.catalog(), None
        is_complete = False
        held: list[bytes] = []
        held_bytes = 0
        # Named, so that it outlives the connection: its own end would wait for that of the query.
        rows = reading.cursor(binary=True).stream(query, size=_ROWS_AT_ONCE if capabilities.has_stream_chunked() else 1)
        try:
            while chunk := [value for (value,) in islice(rows, _ROWS_AT_ONCE)]:
                held += chunk
                held_bytes += sum(map(len, chunk))
                if held_bytes >= batch_bytes:
                    yield pa.array(held, pa.binary())
                    held, held_bytes = [], 0
            is_complete = True
        except psycopg.Error as error:
            if _is_too_long(error):
                raise SourceError(
                    f"the source {self.place} cannot send a row: {_first_line(error)}{_where(error)}",
                    op="capture",
                    hint=f"{_TOO_LONG_HINT} {START_ANEW}",
                ) from error
            if (lasting := _lasting(error, op="capture", place=self.place)) is not None:
                raise lasting from error
            # What is not known to last is tried again.
            raise Unavailable(
                f"reading from the source {self.place} broke off: {_first_line(error)}",
                op="capture",
                hint="If it stays, the server's log has the reason.",
            ) from error
        finally:
            if is_complete and self._catalog is None:
                self._catalog = reading
            else:
                reading.close()
        if held:
            yield pa.array(held, pa.binary())

    def close(self) -> None:
        """End the session."""
        if self._catalog is not None:
            self._catalog.close()

    @contextmanager
    def errors(self, op: str) -> Iterator[None]:
        """Turn psycopg's errors into the pipeline's."""
        try:
            yield
        except psycopg.Error as error:
            found = _translated(error, op=op, place=self.place)
            if error.sqlstate == sqlstate.LOCK_NOT_AVAILABLE:
                # Of its own: the transaction that waited has failed.
                with suppress(psycopg.Error), closing(self.another()) as looking:
                    found.hint = held_up_hint(looking)
            if error.sqlstate == sqlstate.INSUFFICIENT_PRIVILEGE:
                with suppress(psycopg.Error):
                    found.hint = lacking_right_hint(self.catalog(), found.message) or found.hint
            raise found from error

    def _conninfo(self) -> str:
        given = conninfo_to_dict(self._endpoint.url)
        return make_conninfo(
            with_keepalives(self._endpoint.url),
            client_encoding="UTF8",
            application_name=self._application_name,
            connect_timeout=given.get("connect_timeout") or _CONNECT_TIMEOUT_SECONDS,
        )


def statement(name: str) -> LiteralString:
    """The text of `sql/<name>.sql`."""
    return statements(__package__, name)[name]


def _is_too_long(error: Exception) -> bool:
    return getattr(error, "sqlstate", None) == sqlstate.PROGRAM_LIMIT or _TOO_LONG in str(error)


def _where(error: psycopg.Error) -> str:
    """The slot and the LSN, where the server names them."""
    context = (error.diag.context or "").splitlines()
    return f" ({context[0]})" if context else ""


def _lasting(error: Exception, *, op: str, place: str) -> ParallelApplyError | None:
    """The error of a slot that no later try can read either; None for any other."""
    state, text = getattr(error, "sqlstate", None), _first_line(error)
    if state == sqlstate.CONFIGURATION_LIMIT and _TEMPORARY_FILES in text:
        return ConfigurationError(
            f"the source {place}: {text}",
            op=op,
            hint="The server keeps what it sends of a slot in temporary files meanwhile. Run ALTER ROLE … SET "
            "temp_file_limit = -1 for the connection's user, as a superuser of the source.",
        )
    if state == sqlstate.UNDEFINED_FILE and _WAL in text:
        return SourceError(
            f"the source {place} has lost WAL that the slot still needs, so changes are missing: {text}",
            op=op,
            hint=f"Was pg_resetwal run, or WAL removed by hand? Restore the source, or start anew. {START_ANEW}",
        )
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _translated(error: Exception, *, op: str, place: str) -> ParallelApplyError:
    state = getattr(error, "sqlstate", None) or ""
    text = _first_line(error)
    if state.startswith(sqlstate.LOGIN_CLASS) or (not state and refuses_login(text)):
        return ConfigurationError(f"the source {place} refuses the login: {text}", op=op, hint=LOGIN_HINT)
    if state == sqlstate.NO_DATABASE or ("does not exist" in text and "database" in text):
        return ConfigurationError(f"the source {place}: {text}", op=op, hint="Check the connection's database.")
    if _NO_REPLICATION in text:
        return ConfigurationError(
            f"the source {place} takes no replication connection: {text}",
            op=op,
            hint="A connection pooler in between does not pass them on (PgBouncer 1.23 or later does): let the "
            "source's connection name the server itself, at least for the first run, recopy and adopt-source.",
        )
    if state == sqlstate.DUPLICATE_PREPARED_STATEMENT:
        return ConfigurationError(f"the source {place} says: {text}", op=op, hint=RESET_HINT)
    if state == sqlstate.INSUFFICIENT_PRIVILEGE:
        return ConfigurationError(
            f"the source {place} refuses: {text}", op=op, hint="Grant the connection's user what is missing."
        )
    if (lasting := _lasting(error, op=op, place=place)) is not None:
        return lasting
    if state == sqlstate.OBJECT_IN_USE:
        return SourceInUse(
            f"the slot is in use: {text}", op=op, hint="Another capture reads it, or one that died a moment ago."
        )
    if state in {sqlstate.CONFIGURATION_LIMIT, sqlstate.TOO_MANY_CONNECTIONS} and "replication slots" in text:
        return ConfigurationError(
            f"the source {place}: {text}", op=op, hint="Raise max_replication_slots, or drop a slot nobody uses."
        )
    if state in {sqlstate.LOCK_NOT_AVAILABLE, sqlstate.QUERY_CANCELED}:
        return Unavailable(
            f"the source {place}: {text}",
            op=op,
            hint="An open transaction at the source holds it up; look at pg_stat_activity.",
        )
    if not state or state.startswith(_UNREACHABLE):
        return Unavailable(f"the source {place} cannot be reached: {text}", op=op, hint=hint_while_away(str(error)))
    if _is_too_long(error):
        return SourceError(f"the source {place} cannot send a row: {text}", op=op, hint=_TOO_LONG_HINT)
    return SourceError(f"the source {place} says: {text}", op=op)

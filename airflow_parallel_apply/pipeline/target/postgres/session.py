"""One session with the target: opened when needed, set up so that text travels exactly, named after its claim."""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import name_owner
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.bytes_for_letters import name_encoding
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.conflicting import name_constraint
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.culprits import name_culprit
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.enum_labels import name_label
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.lacking_partition import name_partition
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.other_names import Definitions, name_other_name
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.required_columns import name_required
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.rights import name_grant
from airflow_parallel_apply.pipeline.target.postgres.naming import holder_session, idle_session, pipeline_tag
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.keepalive import with_keepalives
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN, SettingsLost, settle

Connection = psycopg.Connection[tuple[Any, ...]]

_AT_TARGET: Final = {"client_min_messages": "warning"}
_END_TIMEOUT: Final = timedelta(seconds=5)
_END_TRIES: Final = 3
_CONNECT_TIMEOUT_SECONDS: Final = 10
_CANCEL_SECONDS: Final = 5.0


class Session:
    """Not thread-safe. A broken connection is replaced at the next use, under the same name."""

    def __init__(
        self,
        dsn: str,
        *,
        pipeline: str,
        synchronous_commit: str | None = None,
        name: str | None = None,
        definitions: Definitions = tuple,
    ) -> None:
        self.pipeline = pipeline
        self._dsn = dsn
        self._synchronous_commit = synchronous_commit
        self._name = name or idle_session(pipeline)
        self.definitions = definitions
        self._connection: Connection | None = None
        self.former_columns: dict[tuple[str, str, str], str] = {}
        """See `FormerColumns`: of all definitions that were followed here."""

    def connection(self) -> Connection:
        """The open connection, in autocommit mode. Errors: psycopg's own."""
        if self._connection is not None and _was_ended(self._connection):
            self._connection.close()
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def transaction(self, op: str, *, channel: int | None = None, is_brief: bool = True) -> Iterator[Connection]:
        """Commit what the block did, or nothing. Errors say where: psycopg's become the pipeline's.

        `is_brief`: its block waits for nothing but the server, which ends it when it hears nothing for some seconds.
        """
        with self.errors(op, channel=channel):
            connection = self.connection()
            with connection.transaction():
                if is_brief:
                    connection.execute(statement("session", "brief"))
                yield connection

    @contextmanager
    def errors(self, op: str, *, channel: int | None = None, seqno: int | None = None) -> Iterator[None]:
        """Turn psycopg's errors into the pipeline's, and fill in where they happened."""
        try:
            yield
        except psycopg.Error as error:
            found = translate(error, op=op).at(pipeline=self.pipeline, channel=channel, seqno=seqno)
            self._complete_hint(found, error)
            raise found from error
        except ParallelApplyError as error:
            error.op = error.op or op
            error.at(pipeline=self.pipeline, channel=channel, seqno=seqno)
            self._complete_hint(error, error.__cause__)
            raise

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Roll back the block's own transaction where it fails, so that the error's hint can be completed."""
        try:
            yield
        except (ParallelApplyError, psycopg.Error):
            if self._connection is not None and not self._connection.closed:
                with suppress(psycopg.Error):
                    self._connection.rollback()
            raise

    def _complete_hint(self, error: ParallelApplyError, cause: BaseException | None) -> None:
        """Once what failed is rolled back; the error is worth more than what is found of it."""
        connection = self._connection
        if connection is None or connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            return
        for complete in (
            name_owner,
            name_grant,
            partial(name_required, former=self.former_columns),
            name_culprit,
            name_label,
            name_partition,
            name_constraint,
            name_encoding,
            partial(name_other_name, definitions=self.definitions),
        ):
            with suppress(psycopg.Error):
                complete(connection, error, cause)

    def become(self, channel: int | None, token: str, *, prepares_group: int | None = None) -> None:
        """Bear the name of a claim from now on. Errors: psycopg's own."""
        is_group = prepares_group is not None
        self._rename(holder_session(self.pipeline, channel, token, group=prepares_group, prepares=is_group))

    def rest(self) -> None:
        """Bear the name of no claim: the next holder's take does not end this session. Errors: psycopg's own."""
        self._rename(idle_session(self.pipeline))

    def _rename(self, name: str) -> None:
        self._name = name
        if self._connection is not None and _was_ended(self._connection):
            self._connection.close()
        if self._connection is not None and not self._connection.closed:
            self._connection.execute("SELECT set_config('application_name', %s, false)", [self._name])

    def end_holders(self, scopes: Sequence[str] | None, *, but_token: str, but_from_group: int | None = None) -> None:
        """End all sessions that hold one of the scopes (None: any) under another claim, and wait until they are gone.

        `but_token` is a claim's tag. `but_from_group`: who only stages for this group and those behind it goes on.
        Errors: `Unavailable` when one would not go; psycopg's own.
        """
        names = {
            "prefix": f"pa:{pipeline_tag(self.pipeline)}:",
            "scopes": list(scopes) if scopes is not None else None,
            "from_group": but_from_group,
            "token": but_token,
            "wait_ms": int(_END_TIMEOUT.total_seconds() * 1000),
        }
        for _ in range(_END_TRIES):
            ended = self.connection().execute(statement("session", "end_holders"), names).fetchone()
            if ended is not None and ended[0]:
                return
            # False also of one that ended by itself in between: in a transaction it would be found again and again.
            self.connection().execute("SELECT pg_catalog.pg_stat_clear_snapshot()")
        raise Unavailable(
            "a former holder's session does not end",
            hint="Look for its application_name in pg_stat_activity and end it.",
        )

    def another(self) -> Connection:
        """A new session like this one; the caller closes it. Errors: psycopg's own, `ConfigurationError`."""
        return self._connect()

    def cancel(self) -> None:
        """End the statement under way, from another thread; it then fails."""
        connection = self._connection
        if connection is not None and not connection.closed:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Connection:
        # Statements are not prepared: DDL may change what they mean from one unit to the next.
        connection = psycopg.connect(
            with_keepalives(self._dsn),
            autocommit=True,
            prepare_threshold=None,
            application_name=self._name,
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
        )
        try:
            settle(lambda query: connection.execute(query).fetchall(), EXACT, LASTING, PLAIN, _AT_TARGET)
            if self._synchronous_commit is not None:
                connection.execute("SELECT set_config('synchronous_commit', %s, false)", [self._synchronous_commit])
        except SettingsLost as error:
            connection.close()
            raise ConfigurationError(f"the target: {error}", hint=error.hint) from error
        except BaseException:
            connection.close()
            raise
        return connection


def _was_ended(connection: Connection) -> bool:
    """True if the server ended an idle session, because it restarted or because the session belonged to a former
    holder: then its last message waits to be read. (Another message, such as a changed setting, costs a needless
    reconnect.)
    """
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))

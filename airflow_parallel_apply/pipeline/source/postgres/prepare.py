"""The first run's work at a PostgreSQL source, and every other run's checks: `Preparation`.

The publication's comment is the record of how far a first run came, since it changes in transactions::

    publication, "log <id>, being prepared" ─▶ slot ─▶ copy ─▶ log <id>, captured to the slot's LSN ─▶ "log <id>"

Nothing is captured before the last step. So a run that finds "being prepared" drops the slot and begins anew, with the
log's id if there is one already; and a slot whose comment names a log is never touched, be that log here or elsewhere.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, LogError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.event import BUCKET_COUNT, NO_SEQNO
from airflow_parallel_apply.pipeline.finding import Finding, Severity, Side, errors, hint_of
from airflow_parallel_apply.pipeline.log.open import create_log, log_exists, open_reader, open_writer
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity
from airflow_parallel_apply.pipeline.source.postgres.catalog import (
    SourceTable,
    describe,
    has_rows,
    list_tables,
    matching,
    sends_generated,
    wire_relation,
)
from airflow_parallel_apply.pipeline.source.postgres.check import server_findings, table_findings
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.slot import PLUGIN, Slot, lsn_text
from airflow_parallel_apply.pipeline.source.protocol import Prepared, Snapshot

_LOCK_TIMEOUT: Final = "30s"
_WITH_GENERATED: Final = "publish_generated_columns = stored"
"""Where a table needs it, see `SourceTable.generated`; it holds for all tables of a publication."""
_COMMENT: Final = re.compile(r"parallel_apply: log ([0-9a-f]{32})(, being prepared)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    system_identifier: str
    database: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What a publication's comment says."""

    log_id: str
    is_ready: bool


def slot_name(pipeline: str) -> str:
    """Of the pipeline's slot and its publication."""
    return f"parallel_apply_{pipeline}"


@dataclass(slots=True)
class Preparation:
    """One call of `Source.prepare`. Its methods raise the drivers' errors, too."""

    session: Session
    slot: Slot
    publication: str
    config: PipelineConfig
    copy: Callable[[Snapshot], None] | None = None
    created: list[str] = field(default_factory=list)

    def run(self) -> Prepared:
        """Idempotent, from wherever an earlier one ended. Two at once: the second waits, bounded."""
        connection = self.session.catalog()
        server = self._server(connection)
        with self._locked(connection):
            tables = list_tables(connection, self.publication)
            followed = matching(tables, self.config.tables)
            self._refuse(self._findings(connection, server, followed))
            record = self._record(connection, server)
            if record is not None and record.is_ready:
                identity = self._check_identity(server, record)
                self._check_unmatched(tables, followed)
                self._add_tables(connection, [table for table in followed if not table.is_published])
            else:
                identity = self._begin(connection, server, record, followed)
        return Prepared(
            log_id=identity.log_id,
            slot=self.slot.name,
            publication=self.publication,
            tables=tuple(table.name for table in followed),
            created=tuple(self.created),
        )

    def check(self) -> tuple[Finding, ...]:
        """What would stand in the way of `run` now. Reads only, takes no lock."""
        connection = self.session.catalog()
        server = self._server(connection)
        tables = list_tables(connection, self.publication)
        followed = matching(tables, self.config.tables)
        findings = self._findings(connection, server, followed)
        if errors(findings):
            return findings
        try:
            record = self._record(connection, server)
            if record is not None and record.is_ready:
                self._check_identity(server, record)
                self._check_unmatched(tables, followed)
            else:
                self._check_rows(connection, followed)
        except FatalError as error:
            return (*findings, self._as_finding(error))
        return findings

    def _as_finding(self, error: FatalError) -> Finding:
        """What only the publication's record, the slot or the log can tell."""
        side = Side.LOG if isinstance(error, LogError) else Side.SOURCE
        where = self.config.log_url if side is Side.LOG else self.slot.name
        return Finding(severity=Severity.ERROR, side=side, where=where, what=error.message, note=error.hint or "")

    def _server(self, connection: psycopg.Connection[Any]) -> _Server:
        found = connection.execute(statement("server")).fetchone()
        if found is None:
            raise Unavailable(f"the source {self.session.place} did not describe itself", op="prepare")
        system_identifier, database, user = found
        return _Server(system_identifier=system_identifier, database=database, user=user)

    def _findings(
        self, connection: psycopg.Connection[Any], server: _Server, followed: Sequence[SourceTable]
    ) -> tuple[Finding, ...]:
        match = _COMMENT.fullmatch(self._commented(connection) or "")
        is_first_run = match is None or match[2] is not None
        return (
            *server_findings(connection, self.slot.name, is_first_run=is_first_run),
            *table_findings(connection, followed, self.config.tables, server.user),
        )

    def _refuse(self, findings: Sequence[Finding]) -> None:
        """Errors: `ConfigurationError` with all findings that are errors."""
        found = errors(findings)
        if found:
            raise ConfigurationError(
                f"the source {self.session.place}: {'; '.join(finding.what for finding in found)}",
                op="prepare",
                pipeline=self.config.pipeline,
                hint=hint_of(found),
            )

    @contextmanager
    def _locked(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        key = f"parallel_apply prepare {self.config.pipeline}"
        connection.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])
        try:
            yield
        finally:
            if not connection.broken:
                connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [key])

    def _record(self, connection: psycopg.Connection[Any], server: _Server) -> _Record | None:
        """None without a publication. Errors: `SourceError` when it, or a slot without it, is not ours."""
        found = self._commented(connection)
        if found is None:
            if log_exists(self.config.log_url):
                self._check_log(server)
                raise self._missing(f"publication {self.publication} is gone")
            if self.slot.state() is not None:
                raise self._missing(f"publication {self.publication} is gone, though slot {self.slot.name} is there")
            return None
        match = _COMMENT.fullmatch(found)
        if match is None:
            raise self._missing(f"publication {self.publication} was made or changed by somebody else")
        return _Record(log_id=match[1], is_ready=match[2] is None)

    def _commented(self, connection: psycopg.Connection[Any]) -> str | None:
        """The publication's comment; None without a publication."""
        found = connection.execute(
            "SELECT coalesce(obj_description(oid, 'pg_publication'), '') FROM pg_publication WHERE pubname = %s",
            [self.publication],
        ).fetchone()
        return None if found is None else str(found[0])

    def _check_identity(self, server: _Server, record: _Record) -> LogIdentity:
        url = self.config.log_url
        if not log_exists(url):
            raise SourceError(
                f"slot {self.slot.name} feeds log {record.log_id}, which is not at {url}",
                op="prepare",
                hint="Give the log_url of that log. To start anew instead, drop the slot and the publication, and "
                "empty the target's tables.",
            )
        reader = open_reader(url)
        self._check_same("log", reader.identity.log_id, record.log_id)
        self._check_log(server)
        self.slot.checked(reader.state().captured_lsn)
        return reader.identity

    def _check_log(self, server: _Server) -> None:
        """That the log is one of this server, database, slot and publication."""
        identity = open_reader(self.config.log_url).identity
        self._check_same("server", identity.system_identifier, server.system_identifier)
        self._check_same("database", identity.database, server.database)
        self._check_same("slot", identity.slot, self.slot.name)
        self._check_same("publication", identity.publication, self.publication)

    def _check_same(self, what: str, logged: str, ours: str) -> None:
        if logged != ours:
            raise LogError(
                f"{self.config.log_url} is another source's log: its {what} is {logged}, while {what} {ours} is asked "
                f"for at {self.session.place}",
                op="prepare",
                pipeline=self.config.pipeline,
                hint="Use this source's log_url, or a new one.",
            )

    def _begin(
        self,
        connection: psycopg.Connection[Any],
        server: _Server,
        record: _Record | None,
        followed: Sequence[SourceTable],
    ) -> LogIdentity:
        """The first run, or one that takes up after a first run that died."""
        if self.config.start is Start.COPY and self.copy is None:
            raise self._wrong(
                "is to be copied, and this step cannot copy", "Run the task capture, or use another start."
            )
        self._check_rows(connection, followed)
        identity = self._identity(server, record)
        if self.slot.state() is not None:
            self.slot.drop()
        with connection.transaction():
            # In one transaction, so that a publication without our comment is always somebody else's.
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self.publication)))
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true{})").format(
                    sql.Identifier(self.publication),
                    sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.identifier) for table in followed),
                    sql.SQL(", " + _WITH_GENERATED if any(table.generated for table in followed) else ""),
                )
            )
            self._comment(connection, f"parallel_apply: log {identity.log_id}, being prepared")
        start_lsn = self._create_slot(followed, identity)
        if not log_exists(self.config.log_url):
            create_log(self.config.log_url, identity)
        writer = open_writer(self.config.log_url, expected=identity)
        generated = sends_generated(connection, self.publication, followed)
        for table in followed:
            # What a first change is sent with may be described when the catalog has gone on.
            writer.relation_id(
                describe(connection, wire_relation(connection, table, with_generated=generated)).relation
            )
        writer.commit(start_lsn)
        self._comment(connection, f"parallel_apply: log {identity.log_id}")
        self.created += [
            f"Created publication {self.publication} for {len(followed)} tables at {self.session.place}.",
            f"Created slot {self.slot.name} at {lsn_text(start_lsn)}; from now on the server keeps WAL for it.",
            f"Created log {identity.log_id} at {self.config.log_url}.",
        ]
        keyless = [table.name for table in followed if table.replica_identity in "dn" and not table.has_primary_key]
        if keyless:
            self.created.append(
                f"Tables without a key take inserts only, the server now refuses their updates: {_listed(keyless)}."
            )
        return identity

    def _identity(self, server: _Server, record: _Record | None) -> LogIdentity:
        """A new one, or that of the log which an earlier attempt made. `LogError` when the log is another's."""
        url = self.config.log_url
        if not log_exists(url):
            return LogIdentity(
                log_id=uuid.uuid4().hex,
                system_identifier=server.system_identifier,
                database=server.database,
                slot=self.slot.name,
                publication=self.publication,
                bucket_count=BUCKET_COUNT,
                created=datetime.now(UTC),
            )
        reader = open_reader(url)
        if record is not None:
            self._check_same("log", reader.identity.log_id, record.log_id)
        self._check_log(server)
        if reader.state().last_seqno != NO_SEQNO:
            raise self._missing(f"slot {self.slot.name} of log {reader.identity.log_id} was made anew")
        return reader.identity

    def _create_slot(self, followed: Sequence[SourceTable], identity: LogIdentity) -> int:
        """The slot, and the LSN from which on it holds everything.

        Its snapshot shows the tables exactly as they were then: a row in there is never captured, so either there is
        none, or it is copied.
        """
        with self._held(followed), self.session.replication() as replication:
            replication.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            # The older syntax, which version 14 knows and later ones still take.
            command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL {} EXPORT_SNAPSHOT").format(
                sql.Identifier(self.slot.name), sql.SQL(PLUGIN)
            )
            result = replication.pgconn.exec_(command.as_string(replication).encode())
            if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(result)
            snapshot = (result.get_value(0, 2) or b"").decode()
            try:
                if self.config.start is Start.EMPTY:
                    self._check_empty_in(snapshot, followed)
                if self.copy is not None:
                    self.copy(Snapshot(name=snapshot, log_id=identity.log_id))
            except BaseException as error:
                replication.close()
                self._withdraw(error)
                raise
        state = self.slot.state()
        if state is None:
            raise self._missing(f"slot {self.slot.name} went while it was made")
        return state.confirmed_lsn

    @contextmanager
    def _held(self, followed: Sequence[SourceTable]) -> Iterator[None]:
        """Keep tables from being rewritten, truncated or redefined between the slot's first moment and the last row of
        the copy: none of that keeps to a snapshot.
        """
        if self.copy is None:
            yield
            return
        with self.session.another() as holding:
            holding.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            names = sql.SQL(", ").join(
                sql.SQL("{}" if table.is_partitioned else "ONLY {}").format(table.identifier) for table in followed
            )
            with holding.transaction():
                holding.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
                yield

    def _check_empty_in(self, snapshot: str, followed: Sequence[SourceTable]) -> None:
        connection = self.session.catalog()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            self._check_empty(connection, followed)

    def _withdraw(self, error: BaseException) -> None:
        """A slot that nobody will read must not hold back the source's WAL. Where even that fails, the next run does
        it: the publication says that this one did not come to its end.
        """
        with suppress(psycopg.Error):
            self.slot.drop()
            if isinstance(error, ConfigurationError):
                self.session.catalog().execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(self.publication)))

    def _add_tables(self, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> None:
        """Follow tables that are new. Writers are held off for the moment, so that no row falls between."""
        if not tables:
            return
        with connection.transaction():
            if any(table.generated for table in tables):
                connection.execute(
                    sql.SQL("ALTER PUBLICATION {} SET ({})").format(
                        sql.Identifier(self.publication), sql.SQL(_WITH_GENERATED)
                    )
                )
            for table in tables:
                connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(table.identifier))
                if has_rows(connection, table):
                    raise self._wrong(
                        f"has a new table with rows, which this pipeline did not see: {table.name}",
                        "Empty the table, or leave it out with an exclude pattern: only a first run copies.",
                    )
                connection.execute(
                    sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(
                        sql.Identifier(self.publication), table.identifier
                    )
                )
        self.created += [f"Added {table.name} to publication {self.publication}." for table in tables]

    def _check_unmatched(self, tables: Sequence[SourceTable], followed: Sequence[SourceTable]) -> None:
        known = {table.oid for table in followed}
        names = [table.name for table in tables if table.is_published and table.oid not in known]
        if names:
            raise self._wrong(
                f"publishes tables that the patterns no longer match: {_listed(names)}",
                f"Keep them in the patterns, or run ALTER PUBLICATION {self.publication} DROP TABLE.",
            )

    def _check_rows(self, connection: psycopg.Connection[Any], followed: Sequence[SourceTable]) -> None:
        """What the start asks of the rows that are there now."""
        if self.config.start is Start.EQUAL:
            return
        hidden = [table.name for table in followed if not table.can_select]
        if hidden:
            raise self._wrong(f"gives no right to read {_listed(hidden)}", "Grant SELECT, and USAGE on the schema.")
        if self.config.start is Start.EMPTY:
            self._check_empty(connection, followed)

    def _check_empty(self, connection: psycopg.Connection[Any], followed: Sequence[SourceTable]) -> None:
        names = [table.name for table in followed if has_rows(connection, table)]
        if names:
            raise self._wrong(
                f"has tables with rows, and start=empty takes none: {_listed(names)}",
                "Use start=copy, or start=equal if the target holds the same rows.",
            )

    def _comment(self, connection: psycopg.Connection[Any], text: str) -> None:
        connection.execute(
            sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(sql.Identifier(self.publication), sql.Literal(text))
        )

    def _wrong(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(
            f"the source {self.session.place} {what}", op="prepare", pipeline=self.config.pipeline, hint=hint
        )

    def _missing(self, what: str) -> SourceError:
        return SourceError(
            f"{what}: changes are missing",
            op="prepare",
            pipeline=self.config.pipeline,
            hint="Start the pipeline anew: drop the slot and the publication, empty the target's tables, choose a new "
            "log_url.",
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"

"""The first run's work at a PostgreSQL source: publication, slot, copy, log, in the order of `belongings`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.open import create_log, log_exists, open_writer
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity
from airflow_parallel_apply.pipeline.source.postgres.belongings import Belongings, Record, Server
from airflow_parallel_apply.pipeline.source.postgres.catalog import (
    SourceTable,
    describe,
    has_rows,
    listed,
    sends_generated,
    wire_relation,
)
from airflow_parallel_apply.pipeline.source.postgres.slot import PLUGIN, lsn_text
from airflow_parallel_apply.pipeline.source.protocol import Snapshot

LOCK_TIMEOUT: Final = "30s"
WITH_GENERATED: Final = "publish_generated_columns = stored"
"""Where a table needs it, see `SourceTable.generated`; it holds for all tables of a publication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """One attempt, or one that takes up after an attempt that died. Its methods raise the drivers' errors, too."""

    belongings: Belongings
    config: PipelineConfig
    followed: Sequence[SourceTable]
    copy: Callable[[Snapshot], None] | None

    def require_rows(self) -> None:
        """What the start asks of the rows that are there now. Errors: `ConfigurationError`."""
        if self.config.start is Start.EQUAL:
            return
        hidden = [table.name for table in self.followed if not table.can_select]
        if hidden:
            raise self._wrong(f"gives no right to read {listed(hidden)}", "Grant SELECT, and USAGE on the schema.")
        if self.config.start is Start.EMPTY:
            self._require_empty(self._catalog())

    def begin(self, server: Server, record: Record | None) -> tuple[LogIdentity, list[str]]:
        """Make all of it; says what was made. Errors: `ConfigurationError`, `SourceError`, `LogError`; those of
        `copy`.
        """
        if self.config.start is Start.COPY and self.copy is None:
            raise self._wrong(
                "is to be copied, and this step cannot copy", "Run the task capture, or use another start."
            )
        self.require_rows()
        mine, connection = self.belongings, self._catalog()
        identity = mine.first_log(server, record)
        if mine.slot.state() is not None:
            mine.slot.drop()
        self._publish(identity)
        start_lsn = self._create_slot(identity)
        if not log_exists(mine.log_url):
            create_log(mine.log_url, identity)
        writer = open_writer(mine.log_url, expected=identity)
        generated = sends_generated(connection, mine.publication, self.followed)
        for table in self.followed:
            # What a first change is sent with may be described when the catalog has gone on.
            writer.relation_id(
                describe(connection, wire_relation(connection, table, with_generated=generated)).relation
            )
        writer.commit(start_lsn)
        mine.set_record(Record(log_id=identity.log_id, is_ready=True))
        created = [
            f"Created publication {mine.publication} for {len(self.followed)} tables at {mine.session.place}.",
            f"Created slot {mine.slot.name} at {lsn_text(start_lsn)}; from now on the server keeps WAL for it.",
            f"Created log {identity.log_id} at {mine.log_url}.",
        ]
        keyless = [
            table.name for table in self.followed if table.replica_identity in "dn" and not table.has_primary_key
        ]
        if keyless:
            created.append(
                f"Tables without a key take inserts only, the server now refuses their updates: {listed(keyless)}."
            )
        return identity, created

    def _publish(self, identity: LogIdentity) -> None:
        """In one transaction, so that a publication without our comment is always somebody else's."""
        connection, publication = self._catalog(), sql.Identifier(self.belongings.publication)
        with connection.transaction():
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(publication))
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true{})").format(
                    publication,
                    sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.identifier) for table in self.followed),
                    sql.SQL(", " + WITH_GENERATED if any(table.generated for table in self.followed) else ""),
                )
            )
            self.belongings.set_record(Record(log_id=identity.log_id, is_ready=False))

    def _create_slot(self, identity: LogIdentity) -> int:
        """The slot, and the LSN from which on it holds everything.

        Its snapshot shows the tables exactly as they were then: a row in there is never captured, so either there is
        none, or it is copied.
        """
        slot = self.belongings.slot
        with self._held(), self.belongings.session.replication() as replication:
            replication.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            # The older syntax, which version 14 knows and later ones still take.
            command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL {} EXPORT_SNAPSHOT").format(
                sql.Identifier(slot.name), sql.SQL(PLUGIN)
            )
            result = replication.pgconn.exec_(command.as_string(replication).encode())
            if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(result)
            snapshot = (result.get_value(0, 2) or b"").decode()
            try:
                if self.config.start is Start.EMPTY:
                    self._require_empty_in(snapshot)
                if self.copy is not None:
                    self.copy(Snapshot(name=snapshot, log_id=identity.log_id))
            except BaseException as error:
                replication.close()
                self._withdraw(error)
                raise
        state = slot.state()
        if state is None:
            raise self.belongings.missing(f"slot {slot.name} went while it was made")
        return state.confirmed_lsn

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep tables from being rewritten, truncated or redefined between the slot's first moment and the last row of
        the copy: none of that keeps to a snapshot.
        """
        if self.copy is None:
            yield
            return
        with self.belongings.session.another() as holding:
            holding.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            names = sql.SQL(", ").join(
                sql.SQL("{}" if table.is_partitioned else "ONLY {}").format(table.identifier) for table in self.followed
            )
            with holding.transaction():
                holding.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
                yield

    def _withdraw(self, error: BaseException) -> None:
        """A slot that nobody will read must not hold back the source's WAL. Where even that fails, the next run does
        it: the publication says that this one did not come to its end.
        """
        with suppress(psycopg.Error):
            self.belongings.slot.drop()
            if isinstance(error, ConfigurationError):
                publication = sql.Identifier(self.belongings.publication)
                self._catalog().execute(sql.SQL("DROP PUBLICATION {}").format(publication))

    def _require_empty_in(self, snapshot: str) -> None:
        connection = self._catalog()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            self._require_empty(connection)

    def _require_empty(self, connection: psycopg.Connection[Any]) -> None:
        names = [table.name for table in self.followed if has_rows(connection, table)]
        if names:
            raise self._wrong(
                f"has tables with rows, and start=empty takes none: {listed(names)}",
                "Use start=copy, or start=equal if the target holds the same rows.",
            )

    def _wrong(self, what: str, hint: str) -> ConfigurationError:
        place = self.belongings.session.place
        return ConfigurationError(f"the source {place} {what}", op="prepare", pipeline=self.config.pipeline, hint=hint)

    def _catalog(self) -> psycopg.Connection[Any]:
        return self.belongings.session.catalog()

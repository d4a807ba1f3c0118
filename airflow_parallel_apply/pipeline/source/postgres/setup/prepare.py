"""Checks a PostgreSQL source for a run, and makes what a first run needs there: `Preparation`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, LogError
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import (
    Finding,
    Severity,
    Side,
    errors,
    refuse,
)
from airflow_parallel_apply.pipeline.model.sighting import in_order
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import (
    SourceTable,
    matching,
    tables_now,
)
from airflow_parallel_apply.pipeline.source.postgres.catalog.history import look_again
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import renamed
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import published
from airflow_parallel_apply.pipeline.source.postgres.check import pooler_findings, server_findings, table_findings
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import capture_findings
from airflow_parallel_apply.pipeline.source.postgres.holding import lock_holder
from airflow_parallel_apply.pipeline.source.postgres.proof.marks import needs_mark
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import observe
from airflow_parallel_apply.pipeline.source.postgres.proof.proof import Proof, prove
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import tell_renamed
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import watch
from airflow_parallel_apply.pipeline.source.postgres.session import LOCK_TIMEOUT, Session
from airflow_parallel_apply.pipeline.source.postgres.setup.copied import copied_rows
from airflow_parallel_apply.pipeline.source.postgres.setup.first_run import FirstRun
from airflow_parallel_apply.pipeline.source.postgres.setup.new_tables import follow_new, require_matched
from airflow_parallel_apply.pipeline.source.postgres.setup.objects import PipelineObjects, Record, Server
from airflow_parallel_apply.pipeline.source.postgres.slot.copy_marks import CopyMarks
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot
from airflow_parallel_apply.pipeline.source.protocol import (
    CopiedPart,
    Keep,
    Look,
    OpenLog,
    PreparedElsewhere,
    Snapshot,
    Stream,
)
from airflow_parallel_apply.pipeline.stream.address import place_of_log


@dataclass(slots=True)
class Preparation:
    """Implements `Preparing`, and `Source.findings`. Its methods raise the drivers' errors, too.

    `stream` comes first: it finds what the others go on from.
    """

    session: Session
    slot: Slot
    publication: str
    config: PipelineConfig
    _tables: tuple[SourceTable, ...] = ()
    _followed: tuple[SourceTable, ...] = ()
    _record: Record | None = None
    _mine: PipelineObjects | None = None
    _renamed: set[int] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)
    """Those of the renamed that the message of the last comment names."""

    def stream(self, log: OpenLog) -> Stream:
        connection = self.session.catalog()
        mine = self._mine = self._objects(log)
        server = mine.server()
        self._look_up_tables()
        warnings = refuse(
            self._findings(connection, mine, server, self._followed),
            place=f"the source {self.session.place}",
            op="prepare",
            pipeline=self.config.pipeline,
        )
        record = self._record = mine.record(server)
        has_begun = record is not None and record.is_ready
        if record is not None and has_begun:
            mine.known_log(server, record)
        else:
            mine.require_new_log(server, record)
        return Stream(
            place=self.session.place,
            server=server.system_identifier,
            database=server.database,
            name=self.slot.name,
            selection=self.publication,
            tables=tuple(table.name for table in self._followed),
            has_begun=has_begun,
            warnings=warnings,
        )

    @contextmanager
    def begin(self, log_id: str) -> Iterator[Snapshot]:
        with self._first_run(self._known).begin(log_id) as snapshot:
            yield snapshot

    def rows(
        self, snapshot: Snapshot, relations: Sequence[Relation], *, first_seqno: int
    ) -> Generator[CopiedPart, None, None]:
        tables = {table.oid: table for table in self._followed}
        return copied_rows(self.session, self.config, snapshot, tables, relations, first_seqno=first_seqno)

    def settle(self, log: LogState) -> Look:
        registration = self._proven(log)
        self._tell_renamed(log, registration)
        # Without the right to make it, the slot tells less, and a rewritten partition counts as truncated. What is
        # left of those that somebody else holds, or has dropped or renamed meanwhile, is watched by a later run.
        with suppress(
            psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable
        ):
            if watch(self.session.catalog(), self.publication, registration.tables):
                registration = self._proven(log)
        # Behind the look at them and before they are registered, so that a crash in between writes another mark. This
        # run reads up to it.
        if needs_mark(self.session.catalog(), log, registration):
            self.slot.mark()
        followed = published(self.session.catalog(), self.publication)
        sightings = look_again(self.session, followed, in_order(log.sightings), dict(registration.skipped))
        return Look(registration=registration.to_text(), sightings=sightings)

    def follow(self, log: LogState, keep: Keep) -> tuple[str, ...]:
        new, record = [one for one in self._followed if not one.is_published], self._record
        if not new or record is None:
            return ()
        try:
            return follow_new(self._known, self.config, log, new, keep, write_record=lambda: self._write_record(record))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise renamed([table.name for table in new], op="prepare") from error

    def findings(self, log: OpenLog) -> tuple[Finding, ...]:
        """See `Source.findings`. Takes no lock."""
        connection = self.session.catalog()
        mine = self._objects(log)
        server = mine.server()
        self._look_up_tables()
        findings = self._findings(connection, mine, server, self._followed)
        if errors(findings):
            return findings
        try:
            record = mine.record(server)
            if record is not None and record.is_ready:
                state = mine.known_log(server, record).state()
                self.slot.require_resumable(state.place)
                findings += self._proof(state).findings(self.config)
                require_matched(mine, self.config, self._tables, self._followed)
            else:
                self._first_run(mine).require_rows()
        except FatalError as error:
            return (*findings, self._as_finding(error))
        return findings

    def _look_up_tables(self) -> None:
        self._tables = tables_now(self.session, self.publication)
        self._followed = matching(self._tables, self.config.tables)

    @property
    def _known(self) -> PipelineObjects:
        if self._mine is None:
            raise ConfigurationError("the stream was not looked at before it was prepared", op="prepare")
        return self._mine

    def _tell_renamed(self, log: LogState, registration: Registration) -> None:
        """Before they are registered as they are now: what a crash leaves untold is told by the next run. A table may
        have its former name again, and a row in the log under another. What the log does not know yet is told again,
        since a message counts only until the comment is written once more.
        """
        before = () if log.registration is None else Registration.from_text(log.registration).tables
        touched = {table.oid: table.touched for table in before if not table.is_entering}
        logged = {relation.oid: relation.name for relation in log.relations}
        self._renamed.update(
            table.oid
            for table in registration.tables
            # The rows of a partition are sent as those of the table that it is in.
            if not table.is_partition
            and (
                touched.get(table.oid, table.touched) != table.touched
                or logged.get(table.oid, table.name) != table.name
            )
        )
        # Not once more: what we have altered since, in a transaction with a comment, is known as ours by it.
        if self._renamed != self._told and self._record is not None:
            with self.session.catalog().transaction():
                self._write_record(self._record)

    def _write_record(self, record: Record) -> None:
        """In a transaction of the catalog session, with the message that counts by it."""
        self._known.set_record(record)
        if self._renamed:
            tell_renamed(self.session.catalog(), sorted(self._renamed))
        self._told = {*self._renamed}

    def _proven(self, log: LogState) -> Registration:
        # What a source that went back has instead is not to be registered: the right one may come again.
        self.slot.require_resumable(log.place)
        # Below that a run's bound would be one that the log has passed already, with nothing to capture.
        CopyMarks(log, self.config).require_wal(self.slot.reached_lsn(log.place, op="prepare"))
        # Before what is in doubt, of which nobody is to copy what the patterns leave out.
        require_matched(self._known, self.config, self._tables, self._followed)
        return self._proof(log).require(self.config, "prepare")

    def _proof(self, log: LogState) -> Proof:
        connection = self.session.catalog()
        registration = (
            # A log of an older version: what was done before cannot be told any more.
            observe(connection, self.publication).registration()
            if log.registration is None
            else Registration.from_text(log.registration)
        )
        return prove(self.session, self.slot.name, self.publication, self.config, registration, log=log)

    def _objects(self, log: OpenLog) -> PipelineObjects:
        return PipelineObjects(
            session=self.session,
            slot=self.slot,
            publication=self.publication,
            pipeline=self.config.pipeline,
            log_url=place_of_log(self.config.log_url),
            log=log,
        )

    def _first_run(self, mine: PipelineObjects) -> FirstRun:
        return FirstRun(objects=mine, config=self.config, followed=self._followed)

    def _as_finding(self, error: FatalError) -> Finding:
        """Turn an error into a finding: one that only the publication's record, the slot or the log can show."""
        side = Side.LOG if isinstance(error, LogError) else Side.SOURCE
        where = place_of_log(self.config.log_url) if side is Side.LOG else self.slot.name
        error.at(pipeline=self.config.pipeline)
        return Finding(severity=Severity.ERROR, side=side, where=where, what=error.message, note=error.hint or "")

    def _findings(
        self,
        connection: psycopg.Connection[Any],
        mine: PipelineObjects,
        server: Server,
        followed: Sequence[SourceTable],
    ) -> tuple[Finding, ...]:
        return (
            *pooler_findings(self.session),
            *server_findings(connection, self.slot.name, is_first_run=mine.is_first_run()),
            *table_findings(
                connection,
                self.publication,
                followed,
                self.config.tables,
                server.user,
                is_first_run=mine.is_first_run(),
            ),
            *capture_findings(connection, self.session.place, self.config.ddl),
        )

    @contextmanager
    def locked(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        key = f"parallel_apply prepare {self.config.stream}"
        try:
            connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])
        except psycopg.errors.LockNotAvailable as error:
            pid = lock_holder(connection, key)
            raise PreparedElsewhere(
                f"another run has been preparing at the source {self.session.place} for {LOCK_TIMEOUT}",
                op="prepare",
                pipeline=self.config.pipeline,
                hint="It is tried again; pg_stat_activity at the source shows what that run waits for"
                + (
                    "."
                    if pid is None
                    else f", as process {pid}. If it stands still, run SELECT pg_terminate_backend({pid})."
                ),
            ) from error
        try:
            yield
        finally:
            if not connection.broken:
                connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [key])

"""The first run's copy, from the rehearsal before anything is made to the last index: `InitialCopy`.

What a crash at each step leaves, and what the next run does with it. The publication says *being prepared* to the end::

    rehearse         nothing: all of it is rolled back
    begin            a record, so that what follows can be told from what was there before
    clear and make   one transaction: empty tables, which the record names       dropped
    load             parts with their marks; Spark tasks that go on for a while  ended, then emptied or dropped
    make the rest    some indexes                                                dropped with their tables
    finish           all of it, without a log                                    copied anew: its slot held nothing back
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from typing import Final, Self
from uuid import uuid4

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.apply.periodic import every
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres.check import copy_findings
from airflow_parallel_apply.pipeline.copy.postgres.definitions import Definitions, read_definitions, sequence_value
from airflow_parallel_apply.pipeline.copy.postgres.load import cut_off, see_snapshot
from airflow_parallel_apply.pipeline.copy.postgres.making import make_rest_after_load, make_tables, rehearse_making
from airflow_parallel_apply.pipeline.copy.postgres.parts import plan_parts, stored_tables
from airflow_parallel_apply.pipeline.copy.postgres.record import CopyRecord
from airflow_parallel_apply.pipeline.copy.protocol import Copying, CopyOrder
from airflow_parallel_apply.pipeline.errors import (
    START_ANEW,
    ConfigurationError,
    OwnershipLost,
    ParallelApplyError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, refuse
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.source.protocol import Snapshot
from airflow_parallel_apply.pipeline.target.expectation import Expectation, require_applicable
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import describe_tables, missing_tables
from airflow_parallel_apply.pipeline.target.postgres.check import pooler_findings, require_that_empty, target_findings
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins, settle_origins
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import note_tables
from airflow_parallel_apply.pipeline.target.postgres.replica_role import be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session

_logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
_LOOKS_PER_REPORT: Final = 4
_LOCK_TIMEOUT: Final = "10s"
_ANALYZED_AT_ONCE: Final = 500


class InitialCopy:
    """One attempt at a first run's copy; a context manager. While it is open no other one of this pipeline begins."""

    def __init__(
        self,
        config: PipelineConfig,
        source: Endpoint,
        target: Endpoint,
        relations: Sequence[Relation],
        copying: Copying,
    ) -> None:
        self._config = config
        self._target = target
        self._relations = tuple(relations)
        self._copying = copying
        self._reading = SourceSession(source, application_name=f"parallel_apply {config.pipeline} copy")
        self._writing = self._open_target()
        self._record = CopyRecord(self._writing)
        self._holding = self._open_target()
        self.created: list[str] = []
        """The objects that were made, in sentences for the user."""

    def __enter__(self) -> Self:
        # Before the lock, which a shared session would keep for whoever has it next.
        with self._holding.errors("copy"):
            found = pooler_findings(self._holding)
        refuse(found, place="the target", op="copy", pipeline=self._config.pipeline)
        CopyRecord(self._holding).hold()
        return self

    def __exit__(self, *error: object) -> None:
        for session in (self._reading, self._writing, self._holding):
            session.close()

    def rehearse(self) -> tuple[Finding, ...]:
        """Refuse by name, before anything is made: tables that are missing or have rows of somebody else's, or that
        could not be made or followed. Makes all of it, and rolls back. Returns what should be known all the same.
        """
        warnings: tuple[Finding, ...] = ()
        self._copying.copier.begin()
        has_record = self._record.state() is not None
        # Of a copy that was cut off: its Spark tasks may go on for a while, and hold its tables.
        self._record.end_sessions()
        with self._writing.transaction("check", is_brief=False) as connection:
            _wait_briefly(connection)
            if has_record:
                self._record.clear(connection, None)
            refuse(
                copy_findings(connection, self._relations, create_tables=self._config.create_tables),
                place="the target",
                op="copy",
                pipeline=self._config.pipeline,
            )
            be_replica(connection)
            rehearse_making(connection, self._definitions(connection))
            looked_for = Expectation(channels=self._config.channels, tables=tuple(self._relations), are_empty=True)
            found = target_findings(self._writing, looked_for)
            warnings = require_applicable(found, op="copy", pipeline=self._config.pipeline)
            raise psycopg.Rollback
        return warnings

    def run(self, snapshot: Snapshot) -> None:
        """Copy what the snapshot shows. Errors: `Unavailable` when it was cut off, for good: a new one is needed."""
        copy_id = uuid4().hex
        self._record.begin(copy_id, snapshot.log_id)
        settle_origins(self._writing, self._config.channels)
        origins = CommitOrigins(self._writing)
        with origins.letting_go(), self._writing.transaction("copy", is_brief=False) as connection:
            _wait_briefly(connection)
            # What a former copy left is emptied here.
            origins.mark(connection, None, CommitOrigin(offset=snapshot.offset))
            self.created += self._record.clear(connection, copy_id)
            definitions = self._definitions(connection)
            made = make_tables(connection, definitions)
            self._record.set_made(copy_id, made)
            tables = describe_tables(connection, self._relations)
            require_that_empty(connection, tables)
            note_tables(connection, self._writing, self._relations, is_certain=True)
        with self._reading.errors("copy"), self._reading.another() as looking:
            if not see_snapshot(looking, snapshot.name):
                raise cut_off(self._config.pipeline)
            stored = stored_tables(looking, self._relations)
        parts = plan_parts(stored, tables)
        self._record.add_parts(copy_id, parts)
        order = CopyOrder(
            pipeline=self._config.pipeline, copy_id=copy_id, snapshot=snapshot.name, offset=snapshot.offset
        )
        try:
            with self._watched():
                self._load(order)
                self._require_no_others({part.target_oid for part in parts})
                self._make_rest(definitions)
                self._analyze()
        except ParallelApplyError as error:
            with suppress(ParallelApplyError):
                self._record.fail(copy_id, str(error))
            raise
        self._record.finish(copy_id)
        self._tell(definitions, len(made))

    def require_finished(self, log_id: str) -> None:
        """That the target holds the copy which this log goes on from. Errors: `ConfigurationError`."""
        state = self._record.state()
        if state is None or not state.is_finished or state.log_id != log_id:
            raise ConfigurationError(
                f"log {log_id} goes on from a copy that this target does not hold",
                op="copy",
                pipeline=self._config.pipeline,
                hint="Use the target, or the start, that the pipeline began with. Only if "
                f"no other pipeline uses its slot: {START_ANEW}",
            )

    def register(self) -> None:
        """See `CopyRecord.register`: once the target knows the pipeline."""
        self._record.register()

    def _load(self, order: CopyOrder) -> None:
        is_cut_off = False
        missing: tuple[int, ...] = ()

        def once() -> None:
            nonlocal is_cut_off, missing
            missing = self._record.missing(order.copy_id)
            if missing and not self._is_there(order.snapshot):
                # No further try of ours helps.
                is_cut_off = True
                return
            if missing:
                self._copying.copier.copy(order, missing)
            if not self._record.loaded(order.copy_id):
                raise Unavailable("some parts were not copied", op="copy", pipeline=order.pipeline)

        def tell(error: BaseException) -> None:
            if self._copying.cancelled():
                raise OwnershipLost("the copy was cancelled", op="copy") from error
            _logger.warning("copy: trying the parts that are missing again: %s", error)

        retrying(once, on_retry=tell, progress=lambda: missing)
        if is_cut_off:
            raise cut_off(order.pipeline)

    def _is_there(self, snapshot: str) -> bool:
        """True if the source still knows the snapshot."""
        with self._reading.errors("copy"), self._reading.another() as looking:
            return see_snapshot(looking, snapshot)

    def _definitions(self, connection: Connection) -> Definitions:
        """The definitions of tables that are missing at the target, if they are to be created."""
        missing: tuple[Relation, ...] = ()
        if self._config.create_tables:
            missing = missing_tables(connection, self._relations)
        with self._reading.errors("copy"):
            return read_definitions(self._reading.catalog(), missing)

    def _require_no_others(self, filled: Collection[int]) -> None:
        """That tables without rows at the source got none, as a trigger of another one might have written."""
        with self._writing.transaction("copy") as connection:
            tables = describe_tables(connection, self._relations)
            require_that_empty(connection, [table for table in tables if table.oid not in filled])

    def _make_rest(self, definitions: Definitions) -> None:
        with self._reading.errors("copy"):
            connection = self._reading.catalog()
            values = [(sequence, *sequence_value(connection, sequence)) for sequence in definitions.sequences]
        make_rest_after_load(self._open_target, definitions, values)

    def _analyze(self) -> None:
        """The first units' plans, and people's, are made of what it finds."""
        with self._writing.errors("analyze"):
            for first in range(0, len(self._relations), _ANALYZED_AT_ONCE):
                some = self._relations[first : first + _ANALYZED_AT_ONCE]
                names = sql.SQL(", ").join(sql.Identifier(relation.schema, relation.table) for relation in some)
                self._writing.connection().execute(sql.SQL("ANALYZE {}").format(names))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell of the progress meanwhile, and pass a cancellation on."""
        with closing(self._open_target()) as session:
            record = CopyRecord(session)
            rounds = count(1)

            def look() -> None:
                if self._copying.cancelled():
                    self._copying.copier.cancel()
                elif next(rounds) % _LOOKS_PER_REPORT == 0:
                    self._report(record)

            with every(_LOOK_SECONDS, look, name="watch copy"):
                yield
            self._report(record)

    def _report(self, record: CopyRecord) -> None:
        with suppress(ParallelApplyError):
            progress = record.progress()
            if progress is not None:
                self._copying.report(progress)

    def _tell(self, definitions: Definitions, made_count: int) -> None:
        if made_count:
            self.created.append(f"Made {made_count} tables as the source has them, with their indexes and constraints.")
        if definitions.defaults_left_out:
            self.created.append(definitions.defaults_left_out)
        progress = self._record.progress()
        if progress is not None:
            self.created.append(
                f"Copied {progress.rows:,} rows of {len(self._relations)} tables, {progress.bytes / 1e6:,.1f} MB."
            )

    def _open_target(self) -> Session:
        return Session(self._target.url, pipeline=self._config.pipeline)


def _wait_briefly(connection: Connection) -> None:
    """For locks of others, which may be held for long."""
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))

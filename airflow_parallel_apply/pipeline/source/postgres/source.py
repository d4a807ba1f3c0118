"""`PostgresSource`: a logical slot, peeked at (which advances nothing), decoded, and advanced to what the log has.

What the log has decides. A slot behind its resume point is advanced first, one above it has lost changes and is
refused.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, LogState
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.reference import Reference
from airflow_parallel_apply.pipeline.model.sighting import in_order
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import matching, tables_now
from airflow_parallel_apply.pipeline.source.postgres.catalog.described import describe_now
from airflow_parallel_apply.pipeline.source.postgres.catalog.history import look_again
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import published, shapes_now
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.proof.proof import is_as_registered, prove
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.setup.prepare import Preparation
from airflow_parallel_apply.pipeline.source.postgres.slot.reading import SlotRead
from airflow_parallel_apply.pipeline.source.postgres.slot.resume import behind
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot, SlotState
from airflow_parallel_apply.pipeline.source.postgres.slot.visibility import Visibility
from airflow_parallel_apply.pipeline.source.protocol import Definitions, Look, OpenLog, Part, Reached
from airflow_parallel_apply.postgres.acting_references import acting_references

BATCH_BYTES: Final = 8 * 2**20
_MARK_BYTES: Final = 2**20
"""WAL since the last transaction that the log has: the most that may be read again, and kept, at each look."""
_FLUSH_TIMEOUT_SECONDS: Final = 10.0
_FLUSH_POLL_SECONDS: Final = 0.01
_COMMIT_GRACE: Final = timedelta(seconds=10)
"""Between a commit's time and its record lie microseconds; seconds where the source's disk stalls."""


class PostgresSource:
    """Implements `Source` for PostgreSQL 14 and later. Connects when first used. Not thread-safe."""

    def __init__(self, endpoint: Endpoint, config: PipelineConfig, *, batch_bytes: int = BATCH_BYTES) -> None:
        self._config = config
        self._batch_bytes = batch_bytes
        self._session = Session(endpoint, application_name=f"parallel_apply {config.pipeline} capture")
        name = config.stream
        self._publication = name
        self._slot = Slot(self._session, name=name, publication=name)
        self._message_bytes: float | None = None
        """The average size of a message; known after the first read."""
        self._visibility: Visibility | None = None
        """As the last look found it that proved something: what the next ones take from it holds for what it saw."""

    def findings(self, log: OpenLog) -> tuple[Finding, ...]:
        with self._session.errors("check"):
            return self._preparation().findings(log)

    @contextmanager
    def preparing(self) -> Iterator[Preparation]:
        with self._session.errors("prepare"):
            preparation = self._preparation()
            with preparation.locked(self._session.catalog()):
                yield preparation

    def relations(self) -> tuple[Relation, ...]:
        with self._session.errors("prepare"):
            tables = matching(tables_now(self._session, self._publication), self._config.tables)
            _, found = shapes_now(self._session, [table.oid for table in tables])
            return describe_now(self._session.catalog(), self._publication, tables, found)

    def names(self) -> frozenset[str]:
        with self._session.errors("prepare"):
            tables = matching(tables_now(self._session, self._publication), self._config.tables)
            return frozenset(table.name for table in tables)

    def references(self) -> tuple[Reference, ...]:
        with self._session.errors("prepare"):
            return tuple(Reference(**found) for found in acting_references(self._session.catalog()))

    def offset(self) -> int:
        """A commit under synchronous_commit=off is acknowledged before it is on disk, and only what is on disk can be
        read: waits until the WAL writer has caught up, which takes it three rounds at most.
        """
        with self._session.errors("capture"):
            self._slot.shorten()
            inserted = self._slot.inserted_lsn()
            deadline = time.monotonic() + _FLUSH_TIMEOUT_SECONDS
            while (flushed := self._slot.flushed_lsn()) < inserted:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the source has WAL up to {lsn_text(inserted)} and flushed only up to {lsn_text(flushed)}",
                        op="capture",
                        hint="Is its disk full or very slow?",
                    )
                time.sleep(_FLUSH_POLL_SECONDS)
            return flushed

    def is_past(self, time: datetime) -> bool:
        """A commit takes its time first and writes its record then. So the clock has to be read before it is asked who
        is under way: who has taken an earlier time began earlier, and bears its transaction id until the record is
        written. One that lasts longer is taken for one that has not come to its commit.
        """
        with self._session.errors("look at the clock"):
            for name in ("clock", "committing"):
                found = self._session.catalog().execute(statement(name), {"time": time, "grace": _COMMIT_GRACE})
                if not (found.fetchone() or (False,))[0]:
                    return False
            return True

    def has_changes(self, log: LogPlace, registration: str | None) -> bool:
        with self._session.errors("sense"):
            followed = matching(tables_now(self._session, self._publication), self._config.tables)
            return (
                self._slot.has_changes(log)
                # What is written to a table is not sent before a run has published it, or refused its rows.
                or not all(table.is_published for table in followed)
                or (
                    registration is not None
                    and not is_as_registered(self._session, self._publication, Registration.from_text(registration))
                )
            )

    def release(self, log: LogPlace) -> None:
        with self._capturing():
            self._slot.advance(log)

    def reach(self, log: LogPlace, until: Offset) -> Offset:
        with self._capturing():
            return self._reach(log, self._slot.checked(lambda: log), until)

    def _reach(self, log: LogPlace, slot: SlotState, until: Offset) -> Offset:
        flushed = self._slot.reached_lsn(log, op="capture")
        if flushed < until:
            self._slot.require_resumable(log)
            raise behind(flushed, f"the run is to read it up to {lsn_text(until)}", op="capture")
        if flushed - slot.confirmed_lsn > _MARK_BYTES:
            self._slot.mark()
            return self._slot.flushed_lsn()
        return max(until, log.captured_offset)

    def look(self, log: LogState, through: Offset) -> Look:
        with self._capturing():
            # Read before the catalog is looked at, which then shows all that committed below, if it is confirmed.
            visibility = Visibility.now(self._session.catalog())
            flushed = self._slot.flushed_lsn() if visibility.is_confirmed else 0
            if not visibility.is_confirmed:
                self._session.forget_answers()
            is_proven = self._visibility is not None and visibility.is_confirmed and through <= log.registered_offset
            if not is_proven:
                self._visibility = visibility
            followed = published(self._session.catalog(), self._publication)
            text = log.registration
            skipped = {} if text is None else dict(Registration.from_text(text).skipped)
            sightings = look_again(self._session, followed, in_order(log.sightings), skipped)
            if text is None:
                return Look(sightings=sightings)
            registration = Registration.from_text(text)
            if is_proven:
                return Look(registration=registration.seen_from(log.resume).to_text(), sightings=sightings)
            registration = self._proven(log, registration)
            return Look(registration=registration.to_text(), registered_offset=flushed, sightings=sightings)

    def _proven(self, log: LogState, registration: Registration) -> Registration:
        proof = prove(self._session, self._slot.name, self._publication, self._config, registration, log=log)
        if proof.doubts:
            # Of a source that went back tables are in doubt as well, and there is more to be said.
            self._slot.require_resumable(log.place)
        proven = proof.require(self._config, "capture")
        if proven.tables != registration.tables:
            # Behind this read: the next one comes to it.
            self._slot.mark()
        return proven

    def read(
        self,
        log: LogState,
        look: Look,
        definitions: Definitions,
        *,
        through: Offset,
        max_changes: int,
        step_changes: int,
    ) -> Generator[Part | Reached, None, None]:
        with self._capturing():
            read = SlotRead(
                self._session,
                self._slot,
                self._config,
                log,
                look,
                definitions,
                publication=self._publication,
                visibility=self._visibility,
                message_bytes=self._message_bytes,
                batch_bytes=self._batch_bytes,
            )
            for given in read.parts(through, max_changes=max_changes, step_changes=step_changes):
                self._message_bytes = read.message_bytes
                yield given

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        """The server that answers behind an error may be another one, or show what it did not: it is looked at anew."""
        try:
            with self._session.errors("capture"):
                yield
        except Unavailable:
            self._visibility = None
            raise

    def _preparation(self) -> Preparation:
        return Preparation(self._session, self._slot, self._publication, self._config)

"""`PostgresSource`: fills a log from a logical slot.

A step, and why a crash at any of its lines repeats, loses nothing and duplicates nothing::

    slot ── peek (moves nothing) ──▶ decode ──▶ log.append ──▶ log.commit(captured LSN) ──▶ slot advances to it

The log's captured LSN decides. A slot behind it is moved up first, one above it has lost changes and is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.finding import Finding
from airflow_parallel_apply.pipeline.log.open import open_reader, open_writer
from airflow_parallel_apply.pipeline.log.protocol import LogState, LogWriter, Overtaken
from airflow_parallel_apply.pipeline.source.postgres.catalog import (
    describe,
    list_tables,
    matching,
    numbered,
    sends_generated,
    wire_relation,
)
from airflow_parallel_apply.pipeline.source.postgres.messages import WireRelation
from airflow_parallel_apply.pipeline.source.postgres.pgoutput import Decoder
from airflow_parallel_apply.pipeline.source.postgres.prepare import Preparation, slot_name
from airflow_parallel_apply.pipeline.source.postgres.rows import FollowedTable
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.slot import Slot, lsn_text
from airflow_parallel_apply.pipeline.source.protocol import CaptureStep, Prepared

BATCH_BYTES: Final = 8 * 2**20
_FLUSH_TIMEOUT_SECONDS: Final = 10.0
_FLUSH_POLL_SECONDS: Final = 0.01
_COMMIT_GRACE: Final = timedelta(seconds=10)
"""Between a commit's time and its record lie microseconds; seconds where the source's disk stalls."""
_PAGE_BYTES: Final = 8192
_LONGEST_PAGE_HEADER_BYTES: Final = 40


class PostgresSource:
    """Implements `Source` for PostgreSQL 14 and later. Connects when first used. Not thread-safe."""

    def __init__(self, endpoint: Endpoint, config: PipelineConfig, *, batch_bytes: int = BATCH_BYTES) -> None:
        self._config = config
        self._batch_bytes = batch_bytes
        self._session = Session(endpoint, application_name=f"parallel_apply {config.pipeline} capture")
        name = slot_name(config.pipeline)
        self._publication = name
        self._slot = Slot(self._session, name=name, publication=name)

    def prepare(self) -> Prepared:
        with self._session.errors("prepare"):
            return Preparation(self._session, self._slot, self._publication, self._config).run()

    def check(self) -> tuple[Finding, ...]:
        with self._session.errors("check"):
            return Preparation(self._session, self._slot, self._publication, self._config).check()

    def relations(self) -> tuple[Relation, ...]:
        with self._session.errors("prepare"):
            connection = self._session.catalog()
            tables = matching(list_tables(connection, self._publication), self._config.tables)
            generated = sends_generated(connection, self._publication, tables)
            return tuple(
                describe(connection, wire_relation(connection, table, with_generated=generated)).relation
                for table in tables
            )

    def current_lsn(self) -> int:
        """A commit under synchronous_commit=off is acknowledged before it is on disk, and only what is on disk can be
        read: waits until the WAL writer has caught up, which takes it three rounds at most.
        """
        with self._session.errors("capture"):
            self._slot.shorten()
            inserted = self._inserted_lsn()
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

    def has_changes(self, captured_lsn: int) -> bool:
        """Lets a slot that a crash left behind move up to `captured_lsn` first: what is below is in the log."""
        with self._unless_overtaken("sense", captured_lsn):
            self._slot.advance(captured_lsn)
            return self._slot.has_changes()

    def capture(self, until_lsn: int, *, max_changes: int, cancelled: Callable[[], bool]) -> CaptureStep:
        started = time.monotonic()
        # A writer of its own for each step: between two steps another lane may have had its turn.
        writer = open_writer(self._config.log_url)
        before = writer.state()
        if before.captured_lsn >= until_lsn:
            with self._unless_overtaken("capture", before.captured_lsn):
                self._slot.advance(before.captured_lsn)
            return _step(before, before, is_done=True, row_count=0, started=started)
        with self._unless_overtaken("capture", before.captured_lsn):
            slot = self._slot.advance(before.captured_lsn)
            step_changes = slot.step_changes(max_changes)
            if self._slot.flushed_lsn() < until_lsn:
                raise SourceError(
                    f"the source's WAL ends below {lsn_text(until_lsn)}, which this run is to reach",
                    op="capture",
                    hint="The server was replaced or restored: changes may be missing.",
                )
            decoder = Decoder(next_seqno=before.last_seqno + 1, table=lambda wire: self._followed(wire, writer))
            try:
                is_whole = self._read(decoder, writer, until_lsn, step_changes, cancelled)
            except BaseException:
                writer.abandon()
                raise
            if not is_whole:
                writer.abandon()
                return _step(before, before, is_done=False, row_count=0, started=started)
            captured_lsn = max(before.captured_lsn, decoder.safe_lsn)
            if decoder.message_count < step_changes:
                # Nothing is left below the bound, so an idle source may forget its WAL up to there.
                captured_lsn = max(captured_lsn, until_lsn)
            after = writer.commit(captured_lsn)
            self._slot.advance(captured_lsn)
        return _step(before, after, is_done=captured_lsn >= until_lsn, row_count=decoder.row_count, started=started)

    @contextmanager
    def _unless_overtaken(self, op: str, captured_lsn: int) -> Iterator[None]:
        """Another run's capture, or that of a lane which stood still, may go on with log and slot at any moment: then
        a slot above `captured_lsn` is no loss. Errors: `Unavailable` in that case.
        """
        try:
            with self._session.errors(op):
                yield
        except (SourceError, Overtaken) as error:
            log = open_reader(self._config.log_url)
            if isinstance(error, Overtaken) or log.state().captured_lsn > captured_lsn:
                raise Unavailable(
                    f"another capture went on with log {log.identity.log_id} meanwhile",
                    op=op,
                    hint="It is tried again from there.",
                ) from error
            raise

    def close(self) -> None:
        self._session.close()

    def _read(
        self,
        decoder: Decoder,
        writer: LogWriter,
        until_lsn: int,
        max_changes: int,
        cancelled: Callable[[], bool],
    ) -> bool:
        """Append what a peek finds. False when cancelled before its end."""
        messages = self._slot.peek(until_lsn, max_changes=max_changes, batch_bytes=self._batch_bytes)
        for batch in messages:
            if cancelled():
                messages.close()
                return False
            if len(batch):
                writer.append(*decoder.decode(batch))
        if not decoder.is_between_transactions:
            raise SourceError("the source's answer ended inside a transaction", op="capture")
        return True

    def _followed(self, wire: WireRelation, writer: LogWriter) -> tuple[FollowedTable, bool]:
        table = describe(self._session.catalog(), wire)
        relation_id, is_redefined = writer.relation_id(table.relation)
        return numbered(table, relation_id), is_redefined

    def _inserted_lsn(self) -> int:
        """Where the WAL ends. At the start of a page it points behind the page's header, which nothing flushes."""
        found = self._session.catalog().execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        inserted = int(found[0]) if found else 0
        page_offset = inserted % _PAGE_BYTES
        return inserted - page_offset if page_offset <= _LONGEST_PAGE_HEADER_BYTES else inserted


def _step(before: LogState, after: LogState, *, is_done: bool, row_count: int, started: float) -> CaptureStep:
    transaction_count = after.last_seqno - before.last_seqno
    return CaptureStep(
        captured_lsn=after.captured_lsn,
        first_seqno=before.last_seqno + 1 if transaction_count else None,
        last_seqno=after.last_seqno,
        row_count=row_count,
        transaction_count=transaction_count,
        done=is_done,
        seconds=time.monotonic() - started,
    )

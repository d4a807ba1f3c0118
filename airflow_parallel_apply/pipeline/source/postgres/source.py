"""`PostgresSource`: fills a log from a logical slot.

One read, and why a crash at any of its lines repeats, loses nothing and duplicates nothing::

    slot ── peek (moves nothing) ──▶ decode ──▶ log.append ──▶ log.commit(captured LSN) ──▶ … ──▶ slot advances to it
                                       ▲                                            │
                                       └────────────── the next step ───────────────┘

What the log has decides. A slot behind its resume point is moved up first, one above it has lost changes and is
refused. Each read begins with the last transaction that the log has, see `resume`.
A server decodes all of a peek before it sends the first row, and anew what it decoded for the peek before: so a read is
large, and a step is what readers of the log wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader, open_writer, sync_manifests
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, LogState, LogWriter, WriterFenced
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.source.postgres.catalog import (
    describe,
    describe_now,
    matching,
    numbered,
    tables_now,
)
from airflow_parallel_apply.pipeline.source.postgres.ddl_messages import DdlMessages
from airflow_parallel_apply.pipeline.source.postgres.history import look_again
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.messages import WireMessage, WireRelation
from airflow_parallel_apply.pipeline.source.postgres.passing import Passing
from airflow_parallel_apply.pipeline.source.postgres.pgoutput import Decoder
from airflow_parallel_apply.pipeline.source.postgres.prepare import Preparation, slot_name
from airflow_parallel_apply.pipeline.source.postgres.proof import is_as_registered, prove
from airflow_parallel_apply.pipeline.source.postgres.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.renaming import RENAMED_PREFIX, renamed, renamed_by
from airflow_parallel_apply.pipeline.source.postgres.resume import LastCommit, ResumedRead, commit_ends
from airflow_parallel_apply.pipeline.source.postgres.sent_sightings import SentSightings
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.postgres.shape import published, shapes, shapes_now
from airflow_parallel_apply.pipeline.source.postgres.slot import Slot, SlotState
from airflow_parallel_apply.pipeline.source.postgres.tuples import FollowedTable
from airflow_parallel_apply.pipeline.source.postgres.written_parts import WrittenParts
from airflow_parallel_apply.pipeline.source.protocol import CaptureStep, Prepared, Snapshot

BATCH_BYTES: Final = 8 * 2**20
_READ_BYTES: Final = 384 * 2**20
"""Of messages, about, that one read of several steps makes the server keep in its temporary files."""
_MARK_BYTES: Final = 2**20
"""Of WAL since the last transaction that the log has: what may be read again, and kept, at each look."""
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
        self._message_bytes: float | None = None
        """Of a message, on average; known after the first read."""

    def prepare(
        self, copy: Callable[[Snapshot], None] | None = None, *, checked: Sequence[Relation] | None = None
    ) -> Prepared:
        with self._session.errors("prepare"):
            return Preparation(self._session, self._slot, self._publication, self._config, copy, checked).run()

    def findings(self) -> tuple[Finding, ...]:
        with self._session.errors("check"):
            return Preparation(self._session, self._slot, self._publication, self._config).findings()

    def relations(self) -> tuple[Relation, ...]:
        with self._session.errors("prepare"):
            tables = matching(tables_now(self._session, self._publication), self._config.tables)
            _, found = shapes_now(self._session, [table.oid for table in tables])
            return describe_now(self._session.catalog(), self._publication, tables, found)

    def offset(self) -> int:
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

    def has_changes(self, log: LogPlace) -> bool:
        """Lets a slot that a crash left behind move up to its place first: what is below is in the log."""
        url = self._config.log_url
        with self._unless_overtaken("sense", lambda: log):
            is_here = log_exists(url)
            if is_here:
                sync_manifests(url)
            self._slot.advance(log)
            registered = open_reader(url).state().registration if is_here else None
            return self._slot.has_changes(log) or (
                registered is not None
                and not is_as_registered(self._session, self._publication, Registration.from_text(registered))
            )

    def capture(
        self, until_offset: int, *, max_changes: int, step_changes: int | None = None, cancelled: Callable[[], bool]
    ) -> Generator[CaptureStep, None, None]:
        began = time.monotonic()
        # A writer of its own for each read: between two reads another lane may have had its turn.
        writer = open_writer(self._config.log_url)
        before = writer.state()
        with self._unless_overtaken("capture", lambda: writer.state().place):
            slot = self._slot.advance(before.place)
            through_lsn = self._reachable(before.place, slot, until_offset)
            followed = published(self._session.catalog(), self._publication)
            writer.see(look_again(self._session, followed, writer.sightings()))
            registration = self._prove(writer, through_lsn)
            sent = SentSightings(writer)
            decoder = Decoder(
                next_seqno=before.last_seqno + 1,
                table=partial(self._followed, writer, sent),
                ddl=DdlMessages(self._session, sent.take).text,
                renamed=partial(self._renamed, writer),
                is_part=WrittenParts(registration, self._config, self._session.catalog).is_part,
                passing=Passing(before.passed_over, captured_offset=before.captured_offset),
            )
            step_changes = step_changes or max_changes
            bounded = max(step_changes, self._bounded_changes(max_changes, through_lsn - before.captured_offset))
            read_changes = slot.read_changes(min(max_changes, bounded))
            read = ResumedRead(
                partial(self._slot.peek, through_lsn, batch_bytes=self._batch_bytes),
                before.place.resume_at(slot.confirmed_lsn),
                place=self._session.place,
                keep=decoder.keep_description,
            )
            messages = read.messages(read_changes)
            resume, row_count = LastCommit(), 0
            try:
                for part, ends_step in _parts(messages, step_changes):
                    if cancelled():
                        writer.abandon()
                        yield _step(before, before, until_offset=until_offset, row_count=0, began=began)
                        return
                    writer.append(*decoder.decode(part))
                    resume.feed(part)
                    if ends_step:
                        after = writer.commit(max(before.captured_offset, decoder.safe_lsn), resume.point)
                        yield _step(
                            before,
                            after,
                            until_offset=until_offset,
                            row_count=decoder.row_count - row_count,
                            began=began,
                        )
                        before, row_count, began = after, decoder.row_count, time.monotonic()
                if not decoder.is_between_transactions:
                    raise SourceError("the source's answer ended inside a transaction", op="capture")
            except BaseException:
                writer.abandon()
                raise
            finally:
                # The slot moves no further, nor does another reader get it, while it is being read.
                messages.close()
            self._message_bytes = decoder.byte_count / decoder.message_count if decoder.message_count else None
            # Nothing is left below the bound after a read that was not full.
            reached = through_lsn if read.is_complete else decoder.safe_lsn
            after = writer.commit(max(before.captured_offset, reached), resume.point)
            self._slot.advance(after.place)
        last = _step(before, after, until_offset=until_offset, row_count=decoder.row_count - row_count, began=began)
        if last.done or last.transaction_count or not row_count:
            yield last

    @contextmanager
    def _unless_overtaken(self, op: str, known: Callable[[], LogPlace]) -> Iterator[None]:
        """Another run's capture, or that of a lane which stood still, may go on with log and slot at any moment: then
        a slot above the place that we know is no loss. Errors: `Unavailable` in that case.
        """
        try:
            with self._session.errors(op):
                yield
        except (SourceError, WriterFenced) as error:
            log = open_reader(self._config.log_url)
            if isinstance(error, WriterFenced) or log.state().place != known():
                raise Unavailable(
                    f"another capture went on with log {log.identity.log_id} meanwhile",
                    op=op,
                    hint="It is tried again from there.",
                ) from error
            raise

    def _reachable(self, log: LogPlace, slot: SlotState, until_offset: int) -> int:
        """How far to read so that everything up to `until_offset` is read. Errors: `SourceError`, `Unavailable`."""
        flushed = self._slot.flushed_lsn()
        if flushed < log.captured_offset:
            self._slot.has_changes(log)
            raise Unavailable(
                f"the source's WAL ends at {lsn_text(flushed)}, and the log had read it up to "
                f"{lsn_text(log.captured_offset)}: the source was restored, or replaced by a server that was behind. "
                "It still has the last transaction that the log has of it",
                op="capture",
                hint="It is tried again, and goes on once the WAL is past that: SELECT pg_switch_wal() at the source "
                "helps an idle one.",
            )
        if flushed < until_offset:
            raise SourceError(
                f"the source's WAL ends below {lsn_text(until_offset)}, which this run is to reach",
                op="capture",
                hint="The server was replaced or restored: changes may be missing.",
            )
        if flushed - slot.confirmed_lsn > _MARK_BYTES:
            self._slot.mark()
            return self._slot.flushed_lsn()
        return max(until_offset, log.captured_offset)

    def close(self) -> None:
        self._session.close()

    def _prove(self, writer: LogWriter, through_lsn: int) -> Registration:
        """What the followed tables are, once the slot is known to hold all that happened to them up to an LSN. Errors:
        `SourceError`.
        """
        state = writer.state()
        if state.registration is None:
            return Registration(server="", tables=())
        registration = Registration.from_text(state.registration)
        if through_lsn <= state.registered_offset:
            return registration
        # Read before the catalog is looked at, which then shows all that committed below.
        flushed = self._slot.flushed_lsn()
        proof = prove(self._session, self._slot.name, self._publication, self._config, registration)
        if proof.doubts:
            # Of a source that went back tables are in doubt as well, and there is more to be said.
            self._slot.require_resumable(state.place)
        proven = proof.require(self._config, "capture")
        writer.register(proven.to_text(), flushed)
        return proven

    def _bounded_changes(self, max_changes: int, wal_bytes: int) -> int:
        """How many changes have about `_READ_BYTES`, by those of the last read; 0 where nothing tells."""
        if self._message_bytes is not None:
            return int(_READ_BYTES / self._message_bytes)
        return max_changes if wal_bytes <= _READ_BYTES else 0

    def _followed(
        self, writer: LogWriter, sent: SentSightings, wire: WireRelation, commit_lsn: int
    ) -> tuple[FollowedTable, bool]:
        connection = self._session.catalog()
        table = describe(
            connection,
            wire,
            shapes(connection, [wire.oid]).get(wire.oid),
            seen=sent.before(wire.oid, commit_lsn),
            known=writer.latest_relation(wire.schema, wire.table, wire.oid),
        )
        relation_id, is_redefined = writer.relation_id(renamed(connection, writer, table.relation))
        return numbered(table, relation_id), is_redefined

    def _renamed(self, writer: LogWriter, xid: int, message: WireMessage) -> tuple[int, ...]:
        if message.prefix != RENAMED_PREFIX or not message.transactional:
            return ()
        return renamed_by(self._session.catalog(), writer, self._publication, xid, message.content)

    def _inserted_lsn(self) -> int:
        """Where the WAL ends. At the start of a page it points behind the page's header, which nothing flushes."""
        found = self._session.catalog().execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        inserted = int(found[0]) if found else 0
        page_offset = inserted % _PAGE_BYTES
        return inserted - page_offset if page_offset <= _LONGEST_PAGE_HEADER_BYTES else inserted


def _parts(messages: Iterable[pa.BinaryArray], step_changes: int) -> Iterator[tuple[pa.BinaryArray, bool]]:
    """The same messages, cut behind the commits where steps of about `step_changes` messages end; whether one does."""
    waiting = 0
    for batch in messages:
        ends, at = commit_ends(batch), 0
        while at < len(batch):
            place = int(np.searchsorted(ends, max(at + 1, at + step_changes - waiting)))
            ends_step = place < len(ends)
            stop = int(ends[place]) if ends_step else len(batch)
            yield batch.slice(at, stop - at), ends_step
            waiting = 0 if ends_step else waiting + stop - at
            at = stop


def _step(before: LogState, after: LogState, *, until_offset: int, row_count: int, began: float) -> CaptureStep:
    transaction_count = after.last_seqno - before.last_seqno
    return CaptureStep(
        captured_offset=after.captured_offset,
        first_seqno=before.last_seqno + 1 if transaction_count else None,
        last_seqno=after.last_seqno,
        row_count=row_count,
        transaction_count=transaction_count,
        done=after.captured_offset >= until_offset,
        seconds=time.monotonic() - began,
    )

"""The one writer of a log in a directory: `DirectoryLogWriter`.

Rows wait in memory until they would fill a segment, then go to files that nobody can see. A commit syncs their
names and publishes one manifest, whose exclusive create is the only step that other processes observe::

    append… ──▶ segment files (synced) ──▶ names synced ──▶ manifest n+1 ──▶ commit returns, the slot may move

A crash before the manifest leaves files that no manifest names; the next writer removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.beginning import as_published, with_first_rows
from airflow_parallel_apply.pipeline.log.buffer import SegmentBuffer, pieces
from airflow_parallel_apply.pipeline.log.compaction import choose_runs, merge, segment_name, sweep
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors, publish, sync_directory
from airflow_parallel_apply.pipeline.log.manifest import Manifest, advance, as_checkpoint, load, manifest_bytes
from airflow_parallel_apply.pipeline.log.options import WriterOptions, rows_memory_bytes
from airflow_parallel_apply.pipeline.log.passing import last_seqno_below, without_rows
from airflow_parallel_apply.pipeline.log.protocol import (
    KEY_ORDER_VERSION,
    LogIdentity,
    LogState,
    PassedOver,
    ResumePoint,
    Segment,
    WriterFenced,
)
from airflow_parallel_apply.pipeline.log.segment import ROW_COST_BYTES, UNLINKED, remove_segment, write_segment
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sighting import Sighting, in_order, newer
from airflow_parallel_apply.pipeline.versions import Versions

_FIRST_FILE_RATIO: Final = 0.4
"""Guess of a row file's size by what goes into it, until the first file says better."""
_PIECES: Final = 16
"""A segment may grow by this part of the buffer beyond its limits, since that is how rows are added."""


class DirectoryLogWriter:
    """Implements `LogWriter`. `clock` answers in UTC."""

    def __init__(
        self,
        directory: LogDirectory,
        identity: LogIdentity,
        *,
        options: WriterOptions,
        clock: Callable[[], datetime],
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._options = options
        self._clock = clock
        self._writer = uuid.uuid4().hex[:12]
        self._segment_number = 0
        self._refused: str | None = None
        self._registration: str | None = None
        self._released: tuple[Offset, ...] = ()
        self._adopted_server: str | None = None
        self._view = load(directory)
        # A writer that died may not have synced the name of what we have just read, and the slot moves by what we read.
        sync_directory(directory.manifests)
        written = [segment for segment in self._view.state.segments[-1:] if segment.row_count]
        self._file_ratio = _ratio(written[0]) if written else _FIRST_FILE_RATIO
        self._passed_over: tuple[PassedOver, ...] | None = None
        self._versions: Versions | None = None
        self._all_sightings: tuple[Sighting, ...] | None = None
        self._forget()
        self._sweep()

    def state(self) -> LogState:
        return self._view.state

    def latest_relation(self, schema: str, table: str, oid: int | None = None) -> Relation | None:
        return self._known().latest(schema, table, oid)

    def latest_relations(self) -> tuple[Relation, ...]:
        return self._known().all_latest()

    def relation_id(self, relation: Relation) -> tuple[int, bool]:
        latest = self.latest_relation(relation.schema, relation.table, relation.oid)
        is_as_before = latest is not None and latest.is_as(relation)
        says_as_much = latest is not None and (latest.is_numbered or not relation.is_numbered)
        if latest is not None and is_as_before and says_as_much and latest.oid == relation.oid:
            return latest.relation_id, False
        return self.define(relation), latest is not None and not is_as_before

    def define(self, relation: Relation) -> int:
        known = self._known()
        defined = replace(relation, relation_id=known.last_id + 1, first_seqno=None)
        self._relations.append(defined)
        known.add(defined)
        return defined.relation_id

    def see(self, sightings: Iterable[Sighting]) -> None:
        found = newer(self.sightings(), sightings)
        if found:
            self._sightings += found
            self._all_sightings = None

    def sightings(self) -> tuple[Sighting, ...]:
        if self._all_sightings is None:
            self._all_sightings = in_order((*self._view.state.sightings, *self._sightings))
        return self._all_sightings

    def _known(self) -> Versions:
        if self._versions is None:
            self._versions = Versions((*self._view.state.relations, *self._relations))
        return self._versions

    def register(self, registration: str, registered_offset: Offset) -> None:
        state = self._view.state
        self._registration = registration if registration != state.registration else None
        self._registered_offset = max(registered_offset, state.registered_offset)

    def append(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        self._check_alive()
        rows = rows.select(UNLINKED.names)
        if self._relations:
            self._relations[:] = with_first_rows(self._relations, rows)
            self._versions = None
        self._buffer.accept(rows, transactions)
        for piece, byte_count, follows in pieces(rows, self._options.buffer_bytes // _PIECES):
            self._buffer.add(piece, byte_count)
            if self._is_full() and self._buffer.may_end_here:
                self._close_segment(ended_below=self._buffer.next_seqno if follows is None else follows)

    def commit(self, captured_offset: Offset, resume: ResumePoint | None = None) -> LogState:
        self._check_alive()
        state = self._view.state
        if self._buffer.open_seqno is not None:
            raise LogError("commit: a transaction has rows and no end", op="commit", seqno=self._buffer.open_seqno)
        if captured_offset < state.captured_offset:
            raise LogError(
                f"commit: the source went back from offset {state.captured_offset} to {captured_offset}",
                op="commit",
                hint="The slot or the server was recreated: start a new log.",
            )
        if not self._buffer.is_empty:
            self._close_segment(ended_below=self._buffer.next_seqno)
        resume = resume or state.resume
        is_registered = self._registration is None and self._registered_offset in (0, state.registered_offset)
        is_moved = (captured_offset, resume) != (state.captured_offset, state.resume) or self._passed_over is not None
        is_another = bool(self._released) or self._adopted_server is not None
        if self._segments or self._relations or self._sightings or is_moved or is_another or not is_registered:
            published = self._publish(
                added=tuple(self._segments),
                removed=tuple(self._removed),
                relations=as_published(self._relations),
                sightings=tuple(self._sightings),
                captured_offset=captured_offset,
                registration=self._registration,
                registered_offset=self._registered_offset,
                passed_over=self._passed_over,
                resume=resume,
            )
            if not published:
                raise self._refuse()
            self._forget()
            self._compact()
        elif self._directory.manifest_path(self._view.version + 1).exists():
            raise self._refuse()
        return self._view.state

    def release(self, *offsets: Offset) -> None:
        self._released = offsets

    def adopt(self, server: str) -> None:
        self._adopted_server = server

    def pass_over(self, tables: Sequence[PassedOver], *, after_seqno: int) -> None:
        self._check_alive()
        if self._names or not self._buffer.is_empty:
            raise LogError("pass over: there are rows that were appended and not committed", op="pass over")
        state = self._view.state
        given = {(one.schema, one.table): one for one in tables}
        self._passed_over = (
            *(one for one in state.passed_over if (one.schema, one.table) not in given),
            *given.values(),
        )
        oids = {one.oid for one in tables if one.oid is not None}
        ids = {
            relation.relation_id
            for relation in state.relations
            if (relation.schema, relation.table) in given or relation.oid in oids
        }
        kept = [segment for segment in state.segments if segment.last_seqno > after_seqno]
        last_seqno = last_seqno_below(self._directory, kept, min(one.below_offset for one in tables))
        for segment in kept:
            name = self._next_name()
            self._names.append(name)
            written = without_rows(
                self._directory,
                segment,
                name,
                relation_ids=ids,
                last_seqno=last_seqno,
                bucket_count=self._identity.bucket_count,
            )
            if written is not None:
                self._segments.append(written)
                self._removed.append(segment.name)

    def purge(self, through_seqno: int, *, older_than: datetime | None = None) -> tuple[Segment, ...]:
        self._check_alive()
        if self._names or not self._buffer.is_empty:
            raise LogError("purge: there are rows that were appended and not committed", op="purge")
        doomed = tuple(
            takewhile(
                lambda segment: (
                    segment.last_seqno <= through_seqno
                    and (older_than is None or segment.last_commit_time < older_than)
                ),
                self._view.state.segments,
            )
        )
        names = tuple(segment.name for segment in doomed)
        if names and not self._publish(
            added=(),
            removed=names,
            captured_offset=self._view.state.captured_offset,
            purged_time=doomed[-1].last_commit_time,
        ):
            raise self._refuse()
        return doomed

    def abandon(self) -> None:
        for name in self._names:
            remove_segment(self._directory, name)
        self._forget()

    def _forget(self) -> None:
        self._failed = False
        self._relations: list[Relation] = []
        self._versions = None
        self._registration = None
        self._registered_offset = 0
        self._sightings: list[Sighting] = []
        self._all_sightings = None
        self._released = ()
        self._adopted_server = None
        self._names: list[str] = []
        self._segments: list[Segment] = []
        self._removed: list[str] = []
        self._passed_over = None
        self._buffer = SegmentBuffer(self._view.state)

    def _check_alive(self) -> None:
        if self._refused is not None:
            raise LogError(self._refused, hint="Open a new writer.")
        if self._failed:
            raise LogError("rows of this writer were lost when a segment could not be written", hint="Abandon them.")

    def _refuse(self) -> WriterFenced:
        self._refused = f"another writer published version {self._view.version + 1} of {self._directory.root} first"
        self.abandon()
        return WriterFenced(
            self._refused,
            op="commit",
            hint="Only one capture may run for a log; nothing of this one was published, and its slot must not move.",
        )

    def _is_full(self) -> bool:
        buffer = self._buffer
        return (
            self._expected_file_bytes() >= self._options.segment_file_bytes
            or rows_memory_bytes(buffer.row_count, buffer.byte_count) >= self._options.buffer_bytes
        )

    def _expected_file_bytes(self) -> int:
        return int(self._file_ratio * (self._buffer.byte_count + ROW_COST_BYTES * self._buffer.row_count))

    def _next_name(self) -> str:
        self._segment_number += 1
        return segment_name(self._view.version + 1, self._writer, self._segment_number)

    def _close_segment(self, *, ended_below: int) -> None:
        """Write what waits, with the transactions below `ended_below`."""
        expected_file_bytes = self._expected_file_bytes()
        # What is taken and not written would be a gap in the log: nothing but `abandon` may follow.
        self._failed = True
        span, rows, transactions = self._buffer.take(ended_below=ended_below)
        self._names.append(self._next_name())
        segment = write_segment(
            self._directory,
            self._names[-1],
            span,
            rows,
            transactions,
            bucket_count=self._identity.bucket_count,
            expected_file_bytes=expected_file_bytes,
            order_version=KEY_ORDER_VERSION,
        )
        if segment.row_count:
            self._file_ratio = _ratio(segment)
        self._segments.append(segment)
        self._failed = False

    def _publish(
        self,
        *,
        added: tuple[Segment, ...],
        removed: tuple[str, ...] = (),
        relations: tuple[Relation, ...] = (),
        sightings: tuple[Sighting, ...] = (),
        captured_offset: Offset,
        resume: ResumePoint | None = None,
        purged_time: datetime | None = None,
        registration: str | None = None,
        registered_offset: Offset = 0,
        passed_over: tuple[PassedOver, ...] | None = None,
    ) -> bool:
        """Make the next version; False when another writer has made it, and then nothing has changed."""
        state = self._view.state
        now = self._clock()
        last = added[-1] if added and not removed else None
        manifest = Manifest(
            version=self._view.version + 1,
            checkpoint=False,
            writer=self._writer,
            created=now,
            added=added,
            removed=removed,
            retired=(),
            relations=relations,
            captured_offset=captured_offset,
            last_seqno=last.last_seqno if last else state.last_seqno,
            last_commit_time=last.last_commit_time if last else state.last_commit_time,
            purged_time=purged_time,
            registration=registration,
            registered_offset=registered_offset,
            passed_over=passed_over,
            sightings=sightings,
            resume=resume or state.resume,
            released=self._released or (state.released if resume in (None, state.resume) else ()),
            adopted_server=self._adopted_server,
        )
        view = advance(self._view, manifest)
        if manifest.version % self._options.checkpoint_every == 0:
            manifest = as_checkpoint(manifest, view, retired_after=now - self._options.superseded_grace)
        for segment in added:
            for path in (self._directory.rows_path(segment.name), self._directory.transactions_path(segment.name)):
                with file_errors(path):
                    path.stat()
        sync_directory(self._directory.segments)
        # Until the outcome is known, this writer neither goes on nor removes files that may be published.
        self._refused = f"the outcome of publishing version {manifest.version} of {self._directory.root} is unknown"
        names, self._names = self._names, []
        published = publish(self._directory.manifest_path(manifest.version), manifest_bytes(manifest))
        self._refused = None
        self._names = names
        if published:
            self._view = view
            self._versions = self._all_sightings = None
        return published

    def _compact(self) -> None:
        """Merge small segments in one more version. The commit is durable already: losing here loses nothing."""
        runs = choose_runs(self._view.state.segments, self._options)
        if runs:
            merged = tuple(
                merge(self._directory, run, self._next_name(), bucket_count=self._identity.bucket_count) for run in runs
            )
            removed = tuple(segment.name for run in runs for segment in run)
            if not self._publish(added=merged, removed=removed, captured_offset=self._view.state.captured_offset):
                self._names = [segment.name for segment in merged]
                self._refuse()
                return
        if self._clock() >= self._sweep_due:
            self._sweep()

    def _sweep(self) -> None:
        now = self._clock()
        sweep(self._directory, self._view, now=now, options=self._options)
        self._sweep_due = now + self._options.superseded_grace


def _ratio(segment: Segment) -> float:
    return segment.file_bytes / (segment.byte_count + ROW_COST_BYTES * segment.row_count)

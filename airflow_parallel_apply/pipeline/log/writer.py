"""The one writer of a log in a directory: `DirectoryLogWriter`.

Rows wait in memory until they would fill a segment, then go to files that nobody can see. A commit syncs their
names and publishes one manifest, whose exclusive create is the only step that other processes observe::

    append… ──▶ segment files (synced) ──▶ names synced ──▶ manifest n+1 ──▶ commit returns, the slot may move

A crash before the manifest leaves files that no manifest names; the next writer removes them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.event import NO_SEQNO, Operation, Relation
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors, publish, sync_directory
from airflow_parallel_apply.pipeline.log.manifest import (
    Manifest,
    advance,
    as_checkpoint,
    load,
    manifest_bytes,
)
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity, LogState, Segment
from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.log.segment import (
    ROW_COST_BYTES,
    UNLINKED,
    Span,
    remove_segment,
    write_segment,
)

_FIRST_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_FILE_RATIO: Final = 0.4
_ROW_MEMORY_BYTES: Final = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Sizes and times of a writer; the defaults suit a log of any size."""

    segment_file_bytes: int = 32 * 2**20
    """A segment is closed at about this size of its row file."""
    buffer_bytes: int = 128 * 2**20
    """Or when its rows take about this much memory."""
    checkpoint_every: int = 32


class DirectoryLogWriter:
    """Implements `LogWriter`."""

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
        self._file_ratio = _FIRST_FILE_RATIO
        self._refused: str | None = None
        self._view = load(directory)
        self._forget()

    def state(self) -> LogState:
        """What this writer has committed or found; the next seqno is one above its last."""
        return self._view.state

    def relation_id(self, relation: Relation) -> tuple[int, bool]:
        known = [*self._view.state.relations, *self._relations]
        latest = next(
            (old for old in reversed(known) if (old.schema, old.table) == (relation.schema, relation.table)), None
        )
        if latest is not None and latest == _numbered(relation, latest.relation_id):
            return latest.relation_id, False
        number = 1 + max((old.relation_id for old in known), default=0)
        self._relations.append(_numbered(relation, number))
        return number, latest is not None

    def append(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        self._check_alive()
        rows = rows.select(UNLINKED.names)
        if not rows.schema.equals(UNLINKED) or not transactions.schema.equals(TRANSACTIONS):
            raise LogError("append: the batches do not have the log's schema", op="append")
        self._check_order(rows, transactions)
        if transactions.num_rows:
            self._transactions.append(transactions)
            self._next_seqno += transactions.num_rows
        ends = _row_byte_ends(rows)
        for start, stop in pairwise(_cuts(ends, self._options.buffer_bytes // 4)):
            self._rows.append(rows.slice(start, stop - start))
            self._row_count += stop - start
            self._byte_count += int(ends[stop] - ends[start])
            if self._is_full() and rows.column("operation")[stop - 1].as_py() != Operation.KEY_LEFT:
                rest = rows.column("seqno")[stop].as_py() if stop < rows.num_rows else self._next_seqno
                self._close_segment(ended_below=rest)

    def commit(self, captured_lsn: int) -> LogState:
        self._check_alive()
        state = self._view.state
        if self._last_row[0] >= self._next_seqno:
            raise LogError("commit: the last transaction has rows and no end", op="commit", seqno=self._last_row[0])
        if captured_lsn < state.captured_lsn:
            raise LogError(
                f"commit: the source went back from LSN {state.captured_lsn} to {captured_lsn}",
                op="commit",
                hint="The slot or the server was recreated: start a new log.",
            )
        if self._rows or self._transactions:
            self._close_segment(ended_below=self._next_seqno)
        if not self._segments and not self._relations and captured_lsn == state.captured_lsn:
            if self._directory.manifest_path(self._view.version + 1).exists():
                raise self._refuse()
            return state
        self._publish(
            added=tuple(self._segments),
            relations=tuple(self._relations),
            captured_lsn=captured_lsn,
            last_seqno=self._next_seqno - 1,
            last_commit_time=self._commit_time if self._next_seqno > 0 else None,
        )
        self._forget()
        return self._view.state

    def abandon(self) -> None:
        for segment in self._segments:
            remove_segment(self._directory, segment.name)
        self._forget()

    def _forget(self) -> None:
        state = self._view.state
        self._relations: list[Relation] = []
        self._segments: list[Segment] = []
        self._transactions: list[pa.RecordBatch] = []
        self._rows: list[pa.RecordBatch] = []
        self._row_count = 0
        self._byte_count = 0
        self._next_seqno = state.last_seqno + 1
        self._last_row = (NO_SEQNO, -1)
        self._start = (self._next_seqno, 0)
        self._commit_time = state.last_commit_time or _FIRST_TIME

    def _check_alive(self) -> None:
        if self._refused is not None:
            raise LogError(self._refused, hint="Open a new writer.")

    def _check_order(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        ended = transactions.column("seqno").to_numpy()
        expected = np.arange(self._next_seqno, self._next_seqno + len(ended))
        if not np.array_equal(ended, expected):
            raise LogError("append: the transactions' seqnos have gaps", op="append", seqno=self._next_seqno)
        if not rows.num_rows:
            return
        seqno = np.concatenate([[self._last_row[0]], rows.column("seqno").to_numpy()])
        fragno = np.concatenate([[self._last_row[1]], rows.column("fragno").to_numpy()])
        step = np.diff(seqno)
        if (
            not np.all((step > 0) | ((step == 0) & (np.diff(fragno) > 0)))
            or seqno[1] < self._next_seqno
            or seqno[-1] > self._next_seqno + len(ended)
        ):
            raise LogError("append: the rows are not the next ones in order", op="append", seqno=self._next_seqno)
        self._last_row = (int(seqno[-1]), int(fragno[-1]))

    def _is_full(self) -> bool:
        return (
            self._expected_file_bytes() >= self._options.segment_file_bytes
            or self._byte_count + _ROW_MEMORY_BYTES * self._row_count >= self._options.buffer_bytes
        )

    def _expected_file_bytes(self) -> int:
        return int(self._file_ratio * (self._byte_count + ROW_COST_BYTES * self._row_count))

    def _close_segment(self, *, ended_below: int) -> None:
        """Write what is buffered, with the transactions below `ended_below`, to a new segment."""
        rows = pa.Table.from_batches(self._rows, schema=UNLINKED)
        waiting = pa.Table.from_batches(self._transactions, schema=TRANSACTIONS)
        waiting_first = waiting.column("seqno")[0].as_py() if waiting.num_rows else ended_below
        transactions = waiting.slice(0, max(0, ended_below - waiting_first))
        span = self._span(rows, transactions)
        # The version that this segment waits for tells later writers whether it can still be published.
        name = f"{self._view.version + 1:012d}-{self._writer}-{self._segment_number:06d}"
        self._segment_number += 1
        segment = write_segment(
            self._directory,
            name,
            span,
            rows,
            transactions,
            bucket_count=self._identity.bucket_count,
            expected_file_bytes=self._expected_file_bytes(),
        )
        if segment.row_count:
            self._file_ratio = segment.file_bytes / (segment.byte_count + ROW_COST_BYTES * segment.row_count)
        for waiting_segment in self._segments:
            # Tells other writers that these files, however old, are not those of a dead writer.
            os.utime(self._directory.rows_path(waiting_segment.name))
            os.utime(self._directory.transactions_path(waiting_segment.name))
        self._segments.append(segment)
        self._rows = []
        self._row_count = 0
        self._byte_count = 0
        self._transactions = waiting.slice(transactions.num_rows).to_batches()
        self._commit_time = span.last_commit_time
        ends_open = span.last_seqno >= waiting_first + transactions.num_rows
        self._start = (span.last_seqno, span.last_fragno + 1) if ends_open else (span.last_seqno + 1, 0)

    def _span(self, rows: pa.Table, transactions: pa.Table) -> Span:
        first_seqno, first_fragno = self._start
        last_seqno, last_fragno = first_seqno, first_fragno - 1
        if rows.num_rows:
            last_seqno = rows.column("seqno")[-1].as_py()
            last_fragno = rows.column("fragno")[-1].as_py()
        commit_time = self._commit_time
        if transactions.num_rows:
            last_transaction = transactions.column("seqno")[-1].as_py()
            if last_transaction > last_seqno:
                last_seqno, last_fragno = last_transaction, -1
            times = transactions.column("commit_time")
            commit_time = max(commit_time, pa.compute.max(times).as_py())
        return Span(
            first_seqno=first_seqno,
            first_fragno=first_fragno,
            last_seqno=last_seqno,
            last_fragno=last_fragno,
            last_commit_time=commit_time,
        )

    def _publish(
        self,
        *,
        added: tuple[Segment, ...],
        removed: tuple[str, ...] = (),
        relations: tuple[Relation, ...],
        captured_lsn: int,
        last_seqno: int,
        last_commit_time: datetime | None,
    ) -> None:
        now = self._clock()
        version = self._view.version + 1
        manifest = Manifest(
            version=version,
            checkpoint=False,
            writer=self._writer,
            created=now,
            added=added,
            removed=removed,
            retired=(),
            relations=relations,
            captured_lsn=captured_lsn,
            last_seqno=last_seqno,
            last_commit_time=last_commit_time,
        )
        view = advance(self._view, manifest)
        if version % self._options.checkpoint_every == 0:
            manifest = as_checkpoint(manifest, view, retired_after=now - timedelta(days=1))
        for segment in added:
            path = self._directory.rows_path(segment.name)
            with file_errors(path):
                path.stat()
        sync_directory(self._directory.segments)
        # Until the outcome is known, this writer neither goes on nor removes files that may be published.
        self._refused = f"the outcome of publishing version {version} of {self._directory.root} is unknown"
        if not publish(self._directory.manifest_path(version), manifest_bytes(manifest)):
            raise self._refuse()
        self._refused = None
        self._view = view

    def _refuse(self) -> LogError:
        self._refused = f"another writer published version {self._view.version + 1} of {self._directory.root} first"
        self.abandon()
        return LogError(
            self._refused,
            op="commit",
            hint="Only one capture may run for a log; nothing of this one was published, and its slot must not move.",
        )


def _numbered(relation: Relation, relation_id: int) -> Relation:
    return Relation(
        relation_id=relation_id,
        schema=relation.schema,
        table=relation.table,
        replica_identity=relation.replica_identity,
        columns=relation.columns,
        canonical=relation.canonical,
    )


def _row_byte_ends(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of the values before each row and, last, of all rows."""
    values = rows.column("values")
    texts = values.values
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32) if len(texts) else np.zeros(1, dtype=np.int32)
    ends: npt.NDArray[np.int64] = offsets[values.offsets.to_numpy() + texts.offset].astype(np.int64)
    return ends


def _cuts(ends: npt.NDArray[np.int64], limit: int) -> list[int]:
    """Row numbers 0 … n that cut rows into parts of at most about `limit` bytes, or one row."""
    cuts = [0]
    last = len(ends) - 1
    while cuts[-1] < last:
        next_cut = int(np.searchsorted(ends, ends[cuts[-1]] + limit, side="right")) - 1
        cuts.append(min(last, max(cuts[-1] + 1, next_cut)))
    return cuts

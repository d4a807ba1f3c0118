"""Unpublished segments: rows that were appended, and the files that they filled before a manifest names these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.buffer import SegmentBuffer, pieces
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.options import WriterOptions, rows_memory_bytes
from airflow_parallel_apply.pipeline.log.passing import without_rows
from airflow_parallel_apply.pipeline.log.protocol import KEY_ORDER_VERSION, LogState, Segment
from airflow_parallel_apply.pipeline.log.segment import ROW_COST_BYTES, remove_segment, write_segment

_FIRST_FILE_RATIO: Final = 0.4
"""Guess of a row file's size by what goes into it, until the first file says better."""
_PIECES: Final = 16
"""A segment may grow by this part of the buffer beyond its limits, since that is how rows are added."""


class UnpublishedSegments:
    """Cuts appended rows into segments and writes their files, which no reader sees. Memory stays bounded.

    `next_name` names the next file. `state` is the log's, behind which the rows stand.
    """

    def __init__(
        self,
        directory: LogDirectory,
        state: LogState,
        *,
        bucket_count: int,
        options: WriterOptions,
        next_name: Callable[[], str],
    ) -> None:
        self._directory = directory
        self._bucket_count = bucket_count
        self._options = options
        self._next_name = next_name
        written = [segment for segment in state.segments[-1:] if segment.row_count]
        self._file_ratio = _ratio(written[0]) if written else _FIRST_FILE_RATIO
        self.begin(state)

    def begin(self, state: LogState) -> None:
        """Start anew behind `state`; the files written so far are somebody else's by now."""
        self._added: list[Segment] = []
        self._removed: list[str] = []
        """Names of published segments that `_added` ones replace."""
        self._names: list[str] = []
        self._failed = False
        self._buffer = SegmentBuffer(state)

    @property
    def is_empty(self) -> bool:
        """True while nothing was appended and no file was begun."""
        return not self._names and self._buffer.is_empty

    @property
    def open_seqno(self) -> int | None:
        """The transaction that has rows and no end yet."""
        return self._buffer.open_seqno

    def check_alive(self) -> None:
        """Raise `LogError` once rows were lost, because a segment could not be written."""
        if self._failed:
            raise LogError("rows of this writer were lost when a segment could not be written", hint="Abandon them.")

    def append(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        """Add rows, and the transactions that end among them; write segments as they fill."""
        self._buffer.accept(rows, transactions)
        for piece, byte_count, follows in pieces(rows, self._options.buffer_bytes // _PIECES):
            self._buffer.add(piece, byte_count)
            if self._is_full() and self._buffer.may_end_here:
                self._close_segment(ended_below=self._buffer.next_seqno if follows is None else follows)

    def flush(self) -> None:
        """Write what still waits."""
        if not self._buffer.is_empty:
            self._close_segment(ended_below=self._buffer.next_seqno)

    def leave_out(self, segments: Sequence[Segment], through: Mapping[int, int]) -> None:
        """Replace published segments by ones without rows of these relations, of each up to a seqno."""
        for segment in segments:
            name = self._next_name()
            self._names.append(name)
            written = without_rows(
                self._directory,
                segment,
                name,
                through=through,
                bucket_count=self._bucket_count,
            )
            if written is not None:
                self._added.append(written)
                self._removed.append(segment.name)

    def hand_over(self) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
        """The segments that were written, and the names of those that they replace. A manifest may name them from here
        on, whatever becomes of this process: `remove_files` leaves them.
        """
        added, removed = tuple(self._added), tuple(self._removed)
        self._added, self._removed, self._names = [], [], []
        return added, removed

    def remove_files(self) -> None:
        """Remove the files that were written and not handed over."""
        for name in self._names:
            remove_segment(self._directory, name)

    def _is_full(self) -> bool:
        buffer = self._buffer
        return (
            self._expected_file_bytes() >= self._options.segment_file_bytes
            or rows_memory_bytes(buffer.row_count, buffer.byte_count) >= self._options.buffer_bytes
        )

    def _expected_file_bytes(self) -> int:
        return int(self._file_ratio * (self._buffer.byte_count + ROW_COST_BYTES * self._buffer.row_count))

    def _close_segment(self, *, ended_below: int) -> None:
        """Write what waits, with the transactions below `ended_below`."""
        expected_file_bytes = self._expected_file_bytes()
        # What is taken and not written would be a gap in the log: nothing but giving them up may follow.
        self._failed = True
        span, rows, transactions = self._buffer.take(ended_below=ended_below)
        self._names.append(self._next_name())
        segment = write_segment(
            self._directory,
            self._names[-1],
            span,
            rows,
            transactions,
            bucket_count=self._bucket_count,
            expected_file_bytes=expected_file_bytes,
            order_version=KEY_ORDER_VERSION,
        )
        if segment.row_count:
            self._file_ratio = _ratio(segment)
        self._added.append(segment)
        self._failed = False


def _ratio(segment: Segment) -> float:
    return segment.file_bytes / (segment.byte_count + ROW_COST_BYTES * segment.row_count)

"""The buffer of the next segment: rows and transactions in log order, and where the segment will start."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.options import rows_memory_bytes
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.log.segment import UNLINKED, Span
from airflow_parallel_apply.pipeline.model.change import Operation

_FIRST_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SegmentBuffer:
    """Holds the law of `append`: gapless seqnos, rows in order, no transaction after its end."""

    def __init__(self, state: LogState) -> None:
        """Starts behind the last transaction of `state`."""
        self.row_count = 0
        self.byte_count = 0
        self._next_seqno = state.last_seqno + 1
        self._rows: list[pa.RecordBatch] = []
        self._transactions = TRANSACTIONS.empty_table()
        self._last_row = (state.last_seqno, -1)
        self._start = (self._next_seqno, 0)
        self._commit_time = state.last_commit_time or _FIRST_TIME

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._transactions.num_rows

    @property
    def next_seqno(self) -> int:
        """The seqno of the transaction that ends next."""
        return self._next_seqno

    @property
    def open_seqno(self) -> int | None:
        """The transaction that has rows and no end yet."""
        return self._last_row[0] if self._last_row[0] >= self._next_seqno else None

    @property
    def may_end_here(self) -> bool:
        """True if a segment may end here: not between the halves of a key change, which `link` has to see together."""
        return not self._rows or self._rows[-1].column("operation")[-1].as_py() != Operation.KEY_LEFT

    def accept(self, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
        """Check that they are the log's next ones, and keep the transactions; the rows follow through `add`."""
        if not rows.schema.equals(UNLINKED) or not transactions.schema.equals(TRANSACTIONS):
            raise LogError("append: the batches do not have the log's schema", op="append")
        ended = transactions.column("seqno").to_numpy()
        expected = np.arange(self._next_seqno, self._next_seqno + len(ended))
        if not np.array_equal(ended, expected):
            raise LogError("append: transactions are not the next ones", op="append", seqno=self._next_seqno)
        if rows.num_rows:
            self._check_rows(rows, self._next_seqno + len(ended))
        if len(ended):
            self._transactions = pa.concat_tables([self._transactions, pa.Table.from_batches([transactions])])
            self._next_seqno += len(ended)

    def add(self, rows: pa.RecordBatch, byte_count: int) -> None:
        """Rows that `accept` has checked, in order."""
        self._rows.append(rows)
        self.row_count += rows.num_rows
        self.byte_count += byte_count

    def take(self, *, ended_below: int) -> tuple[Span, pa.Table, pa.Table]:
        """Everything that waits, but of the transactions only those below `ended_below`, and its span.

        The rows come in one piece, and what they were put together from is free by then.
        """
        rows = pa.Table.from_batches(self._rows, schema=UNLINKED)
        self._rows, self.row_count, self.byte_count = [], 0, 0
        rows = rows.combine_chunks()
        first_waiting = self._next_seqno - self._transactions.num_rows
        transactions = self._transactions.slice(0, max(0, ended_below - first_waiting))
        first_waiting += transactions.num_rows

        last_seqno, last_fragno = self._start[0], self._start[1] - 1
        if rows.num_rows:
            last_seqno, last_fragno = rows.column("seqno")[-1].as_py(), rows.column("fragno")[-1].as_py()
        if transactions.num_rows:
            if first_waiting - 1 > last_seqno:
                last_seqno, last_fragno = first_waiting - 1, -1
            latest = pc.max(transactions.column("commit_time")).as_py()
            self._commit_time = max(self._commit_time, latest.astimezone(UTC))
        span = Span(
            first_seqno=self._start[0],
            first_fragno=self._start[1],
            last_seqno=last_seqno,
            last_fragno=last_fragno,
            last_commit_time=self._commit_time,
        )
        self._start = (last_seqno, last_fragno + 1) if last_seqno >= first_waiting else (last_seqno + 1, 0)
        self._transactions = self._transactions.slice(transactions.num_rows)
        return span, rows, transactions

    def _check_rows(self, rows: pa.RecordBatch, open_seqno: int) -> None:
        seqno = np.concatenate([[self._last_row[0]], rows.column("seqno").to_numpy()])
        fragno = np.concatenate([[self._last_row[1]], rows.column("fragno").to_numpy()])
        step = np.diff(seqno)
        ordered = np.all((step > 0) | ((step == 0) & (np.diff(fragno) > 0)))
        if not ordered or seqno[1] < self._next_seqno or seqno[-1] > open_seqno:
            raise LogError("append: the rows are not the next ones in order", op="append", seqno=self._next_seqno)
        self._last_row = (int(seqno[-1]), int(fragno[-1]))


def pieces(rows: pa.RecordBatch, limit_bytes: int) -> Iterator[tuple[pa.RecordBatch, int, int | None]]:
    """Cut rows into parts of about `limit_bytes` of memory: (part, bytes of its values, seqno that follows)."""
    before = _bytes_before(rows)
    memory_before = before + rows_memory_bytes(1, 0) * np.arange(len(before))
    start = 0
    while start < rows.num_rows:
        fits = int(np.searchsorted(memory_before, memory_before[start] + limit_bytes, side="right")) - 1
        stop = min(rows.num_rows, max(start + 1, fits))
        follows = rows.column("seqno")[stop].as_py() if stop < rows.num_rows else None
        yield rows.slice(start, stop - start), int(before[stop] - before[start]), follows
        start = stop


def _bytes_before(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of the values before each row and, last, of all rows."""
    before = np.zeros(rows.num_rows + 1, dtype=np.int64)
    np.cumsum(pc.binary_length(rows.column("values")).to_numpy(), out=before[1:])
    return before

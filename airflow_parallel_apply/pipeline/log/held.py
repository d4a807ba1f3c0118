"""A stretch of a log, read once and held in memory: for whoever reads it piece by piece.

A segment's rows are clustered by bucket, so each read of a few seqnos costs a read of all its row groups. Memory: the
whole stretch, which whoever chose it has bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import LogState, RowReader
from airflow_parallel_apply.pipeline.log.schema import ROWS


class HeldRows:
    """`RowReader` for (after_seqno, last_seqno] of another one, as it was when this one was made. Always in order."""

    def __init__(self, log: RowReader, after_seqno: int, last_seqno: int) -> None:
        self._state = log.state()
        self._transactions = log.transactions(after_seqno, last_seqno)
        read = pa.Table.from_batches(log.rows(after_seqno, last_seqno, in_order=True), schema=ROWS)
        self._rows = read.combine_chunks()
        self._seqnos = self._rows.column("seqno").to_numpy()

    def state(self) -> LogState:
        return self._state

    def transactions(self, after_seqno: int, last_seqno: int) -> pa.Table:
        return self._transactions.filter((pc.field("seqno") > after_seqno) & (pc.field("seqno") <= last_seqno))

    def rows(
        self,
        after_seqno: int,
        last_seqno: int,
        *,
        columns: Sequence[str] | None = None,
        in_order: bool = False,
        after_fragno: int | None = None,
        buckets: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        del in_order
        first, end = (int(found) for found in np.searchsorted(self._seqnos, [after_seqno, last_seqno], side="right"))
        found = self._rows.slice(first, end - first)
        if after_fragno is not None:
            found = found.filter(pc.field("fragno") > after_fragno)
        if buckets is not None:
            found = found.filter((pc.field("bucket") >= buckets[0]) & (pc.field("bucket") <= buckets[1]))
        yield from found.select(ROWS.names if columns is None else list(columns)).to_batches()

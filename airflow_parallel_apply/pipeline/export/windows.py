"""Windows of a log: its rows by table, as many at a time as memory should hold, in the order of transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, row_typing, typed_rows
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import Operation, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows of one relation, by (seqno, fragno), and when their transactions committed. See `Portion`."""

    relation: Relation
    rows: pa.Table
    commit_times: CommitTimes

    @property
    def keys(self) -> tuple[str, ...]:
        return ("key",) if self.relation.key_indexes else ()

    def typing(self, texts: Collection[str]) -> RowTyping:
        return row_typing(self.relation, texts)

    def typed(self, batch: pa.RecordBatch, typing: RowTyping) -> pa.RecordBatch:
        times = self.commit_times
        return typed_rows(batch, typing, times.of(batch.column("seqno")), copied_through=times.copied_through)

    def seqnos(self, batch: pa.RecordBatch) -> tuple[int, int]:
        seqno = batch.column("seqno")
        return seqno[0].as_py(), seqno[-1].as_py()


def windows(
    log: LogReader,
    after_seqno: int,
    last_seqno: int,
    *,
    wanted: Callable[[Relation], bool],
    window_bytes: int,
    passed_over: Callable[[int], None],
) -> Iterator[Window]:
    """Read the changes of wanted tables. `passed_over` is told how many rows are not among them.

    Memory: a segment of the log, and about twice `window_bytes`.
    """
    relations = {relation.relation_id: relation for relation in log.state().relations if wanted(relation)}
    held: dict[int, list[pa.RecordBatch]] = {}
    size = 0
    for read in log.rows(after_seqno, last_seqno, in_order=True):
        batch = read.filter(pc.not_equal(read.column("operation"), Operation.MESSAGE.value))
        ids = batch.column("relation_id").to_numpy()
        kept = 0
        for relation_id in np.unique(ids).tolist():
            if relation_id in relations:
                part = batch.filter(pa.array(ids == relation_id)) if (ids != relation_id).any() else batch
                held.setdefault(relation_id, []).append(part)
                kept += part.num_rows
                size += part.nbytes
        passed_over(read.num_rows - kept)
        if size >= window_bytes:
            yield from _windows(log, held, relations)
            held, size = {}, 0
    yield from _windows(log, held, relations)


def _windows(log: LogReader, held: dict[int, list[pa.RecordBatch]], relations: dict[int, Relation]) -> Iterator[Window]:
    if not held:
        return
    first = min(batches[0].column("seqno")[0].as_py() for batches in held.values())
    last = max(batches[-1].column("seqno")[-1].as_py() for batches in held.values())
    commit_times = CommitTimes.of_log(log, first - 1, last)
    for relation_id, batches in held.items():
        yield Window(relation=relations[relation_id], rows=pa.Table.from_batches(batches), commit_times=commit_times)

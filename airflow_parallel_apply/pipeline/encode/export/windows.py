"""Windows of a log: its rows by table, as many at a time as memory should hold, in the order of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import Operation, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows of one relation, by (seqno, fragno)."""

    relation: Relation
    rows: pa.Table


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
            yield from _windows(held, relations)
            held, size = {}, 0
    yield from _windows(held, relations)


def _windows(held: dict[int, list[pa.RecordBatch]], relations: dict[int, Relation]) -> Iterator[Window]:
    for relation_id, batches in held.items():
        yield Window(relation=relations[relation_id], rows=pa.Table.from_batches(batches))


class CommitTimes:
    """When the log's transactions committed. Threads share one; a call reads the transactions of some seqnos."""

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def of(self, seqnos: pa.Array) -> pa.Array:
        """The commit time of each seqno; they ascend."""
        numbers = seqnos.to_numpy()
        found = self._log.transactions(int(numbers[0]) - 1, int(numbers[-1]))
        places = np.searchsorted(found.column("seqno").to_numpy(), numbers)
        return found.column("commit_time").combine_chunks().take(pa.array(places))

"""Finds where things begin in a log: the versions of tables' definitions, each with its first row, and what was
captured, behind the initial copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Mark, Relation


def with_first_rows(relations: Sequence[Relation], rows: pa.RecordBatch) -> list[Relation]:
    """The relations; those that had no row before and have one here know its seqno from now on."""
    waiting = [relation.relation_id for relation in relations if relation.first_seqno is None]
    if not waiting or not rows.num_rows:
        return list(relations)
    mine = rows.select(["relation_id", "seqno"]).filter(
        pc.is_in(rows.column("relation_id"), pa.array(waiting, rows.column("relation_id").type))
    )
    found = pa.Table.from_batches([mine]).group_by("relation_id").aggregate([("seqno", "min")]).to_pylist()
    firsts = {row["relation_id"]: row["seqno_min"] for row in found}
    return [
        replace(one, first_seqno=firsts[one.relation_id]) if one.relation_id in firsts else one for one in relations
    ]


def as_published(relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """A version that is published before any row of it begins nowhere: the target of a copy has it."""
    return tuple(one if one.first_seqno is not None else replace(one, first_seqno=NO_SEQNO) for one in relations)


def copied_through(transactions: pa.Table) -> int:
    """The last of some `TRANSACTIONS` that is the initial copy's; NO_SEQNO where none is. In a log they come first."""
    copied = [
        seqno
        for seqnos, marks in zip(transactions.column("seqno").chunks, transactions.column("marks").chunks, strict=True)
        for seqno in _copied(seqnos, marks)
    ]
    return max(copied, default=NO_SEQNO)


def holds_nothing_captured(log: RowReader) -> bool:
    """True if everything in a log is the initial copy's, or nothing is in it. Errors: `LogError`."""
    last_seqno = log.state().last_seqno
    return last_seqno == NO_SEQNO or copied_through(log.transactions(last_seqno - 1, last_seqno)) == last_seqno


def _copied(seqnos: pa.Array, marks: pa.ListArray) -> list[int]:
    is_copied = pc.equal(marks.flatten(), Mark.COPY.value)
    found: list[int] = seqnos.take(pc.list_parent_indices(marks).filter(is_copied)).to_pylist()
    return found

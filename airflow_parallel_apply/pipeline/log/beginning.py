"""Finds where the versions of tables' definitions begin: the seqno of each one's first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation


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

"""Rows of a log, written by hand: what the tests of the target load and replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, NO_SEQNO, Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from tests.log_batches import bitmap


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One log row."""

    seqno: int
    operation: str
    values: Sequence[str | None]
    relation_id: int = 1
    fragno: int = 0
    unsent: Sequence[int] | None = None
    old_key: Sequence[str] | None = None
    previous_seqno: int = NO_SEQNO
    next_seqno: int = LAST_SEQNO


def relation(relation_id: int, table: str, columns: str, *, key: str = "", schema: str = "public") -> Relation:
    """`columns` and `key`: names between spaces."""
    keys = key.split()
    return Relation(
        relation_id=relation_id,
        schema=schema,
        table=table,
        replica_identity=ReplicaIdentity.KEY,
        columns=tuple(
            Column(name=name, type_name="text", kind=KeyKind.TEXT, key=name in keys) for name in columns.split()
        ),
    )


def key_of(found: Relation, row: Row) -> str | None:
    parts = [row.values[index] for index in found.key_indexes]
    return "\x1f".join(str(part) for part in parts) if parts else None


def batch(relations: dict[int, Relation], rows: Sequence[Row]) -> pa.RecordBatch:
    """In the order given."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "seqno": row.seqno,
                "fragno": row.fragno,
                "relation_id": row.relation_id,
                "operation": row.operation,
                "bucket": 0,
                "key": key_of(relations[row.relation_id], row),
                "key_order": 0,
                "previous_seqno": row.previous_seqno,
                "next_seqno": row.next_seqno,
                "values": line(row.values),
                "unsent": bitmap(row.values, row.unsent),
                "old_key": None if row.old_key is None else line(row.old_key),
            }
            for row in rows
        ],
        schema=ROWS,
    )


def clustered(
    relations: dict[int, Relation], rows: Sequence[Row], *, batch_rows: int = 1000
) -> Iterator[pa.RecordBatch]:
    """As Spark hands them to the loader: the rows of one key together, in (seqno, fragno) order."""
    ordered = sorted(
        rows, key=lambda row: (row.relation_id, key_of(relations[row.relation_id], row) or "", row.seqno, row.fragno)
    )
    for start in range(0, len(ordered), batch_rows):
        yield batch(relations, ordered[start : start + batch_rows])


def in_order(relations: dict[int, Relation], rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """As a log reader hands them to a replay."""
    yield batch(relations, sorted(rows, key=lambda row: (row.seqno, row.fragno)))

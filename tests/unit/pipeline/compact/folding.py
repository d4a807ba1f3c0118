"""Changes of a table as files of a feed have them, and the rows that folding them leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.compact.files.lineage import lineages
from airflow_parallel_apply.pipeline.compact.files.table import TableInput
from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line
from airflow_parallel_apply.pipeline.model.value_type import ValueType

KEYED = Relation(
    relation_id=3,
    schema="public",
    table="t",
    replica_identity=ReplicaIdentity.KEY,
    columns=(
        Column(name="a", type_name="integer", key=True, number=1, value=ValueType.parse("integer 32")),
        Column(name="b", type_name="double precision", key=True, number=2, value=ValueType.parse("float 64")),
        Column(name="v", type_name="text", number=3, value=ValueType.parse("text")),
        Column(name="w", type_name="bytea", number=4, value=ValueType.parse("bytes")),
    ),
    oid=7,
)


@dataclass(frozen=True)
class Row:
    """One change as a log has it."""

    operation: str
    values: tuple[str | None, ...]
    unsent: str | None = None
    old_key: str | None = None


def batch(relation: Relation, rows: list[tuple[int, int, Row]], copied_through: int) -> pa.RecordBatch:
    """Typed, as a file of the feed has them."""
    filled = {
        "seqno": [seqno for seqno, _, _ in rows],
        "fragno": [fragno for _, fragno, _ in rows],
        "operation": [row.operation for _, _, row in rows],
        "values": [line(row.values) for _, _, row in rows],
        "unsent": [row.unsent for _, _, row in rows],
        "old_key": [row.old_key for _, _, row in rows],
    }
    zeros = np.zeros(len(rows), dtype=np.int64)
    arrays = [
        pa.array(filled[one.name], one.type) if one.name in filled else pa.array(zeros).cast(one.type) for one in ROWS
    ]
    moments = pa.array(zeros, pa.timestamp("us", tz="UTC"))
    return typed_rows(
        pa.record_batch(arrays, schema=ROWS), row_typing(relation), moments, copied_through=copied_through
    )


def folded(
    files: list[tuple[Relation, list[tuple[int, int, Row]]]],
    directory: Path,
    *,
    memory_bytes: int = 2**30,
    copied_through: int = -1,
) -> list[tuple[Any, ...]]:
    """The values of the rows that are left."""
    named = [
        DataFile(
            path=str(place),
            table=relation.name,
            relation_id=relation.relation_id,
            rows=len(rows),
            bytes_=0,
            first_seqno=0,
            last_seqno=0,
            checksum="",
        )
        for place, (relation, rows) in enumerate(files)
    ]
    ((lineage,), replaced) = lineages({relation.relation_id: relation for relation, _ in files}.values(), named)
    assert not replaced
    table = TableInput(
        lineage=lineage,
        typing=row_typing(lineage.newest),
        files=tuple(named),
        opened=lambda file: iter([batch(*files[int(file.path)], copied_through)]),
        memory_bytes=memory_bytes,
        directory=directory,
    )
    batches = list(table.rows())
    assert all(set(one.column("_operation").to_pylist()) <= {"insert"} for one in batches)
    width = len(lineage.newest.columns)
    return [tuple(row.values()) for one in batches for row in one.select(list(range(width))).to_pylist()]


def values(key: tuple[int, float], v: str | None, w: str | None) -> tuple[str | None, ...]:
    return (str(key[0]), f"{key[1]:g}", v, w)

"""Rows of two tables, narrow and wide, as a log has them, and typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, row_typing, typed_rows
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import lines
from airflow_parallel_apply.pipeline.model.value_type import ValueType

_NARROW: Final = ("integer 64", "integer 32", "integer 32", "instant")
TABLES: Final[dict[str, tuple[str, ...]]] = {
    "narrow": _NARROW,
    "wide": (*_NARROW, "decimal 12 2", "float 64", "date", "boolean", *("text",) * 8),
}


def typed_table(name: str, rows: int) -> tuple[RowTyping, pa.Table]:
    """So many rows of a table, typed."""
    typing = row_typing(relation(name))
    return typing, pa.Table.from_batches([typed_rows(log_rows(TABLES[name], rows), typing, commit_times(rows))])


def commit_times(rows: int) -> pa.Array:
    """One moment for all of them."""
    return pa.array(np.zeros(rows, dtype=np.int64), pa.timestamp("us", tz="UTC"))


def relation(name: str) -> Relation:
    """The definition of a table of `TABLES`."""
    return Relation(
        relation_id=0,
        schema="public",
        table=name,
        replica_identity=ReplicaIdentity.KEY,
        columns=tuple(
            Column(name=f"c{place}", type_name=value, key=place == 0, value=ValueType.parse(value))
            for place, value in enumerate(TABLES[name])
        ),
    )


def log_rows(values: Sequence[str], rows: int) -> pa.RecordBatch:
    """Insertions, one a transaction, with a column of each of these types."""
    random = np.random.default_rng(1)
    makers: dict[str, Callable[[], pa.Array]] = {
        "integer 64": lambda: pa.array(np.arange(rows)),
        "integer 32": lambda: pa.array(random.integers(-5000, 5000, rows)),
        "instant": lambda: pa.array([f"2026-01-{1 + n % 28:02} 12:00:00.{n % 999_983:06}+00" for n in range(rows)]),
        "decimal 12 2": lambda: pa.array([f"{n % 99_991}.{n % 100:02}" for n in range(rows)]),
        "float 64": lambda: pa.array(random.random(rows)),
        "date": lambda: pa.array([f"20{n % 99:02}-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(rows)]),
        "boolean": lambda: pa.array(["t", "f"] * (rows // 2) + ["t"] * (rows % 2)),
        "text": lambda: pa.array([f"some words, and number {n % 1009}" for n in range(rows)]),
    }
    columns = [makers[value]().cast(pa.string()) for value in values]
    width = len(columns)
    flat = pa.concat_arrays(columns)
    order = np.arange(rows * width).reshape(width, rows).T.reshape(-1)
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    zeros = np.zeros(rows, dtype=np.int64)
    filled = {
        "seqno": np.arange(rows),
        "operation": pa.array(["I"] * rows),
        "values": lines(flat.take(pa.array(order)), offsets),
        "key": columns[0],
        "unsent": pa.nulls(rows, pa.string()),
        "old_key": pa.nulls(rows, pa.string()),
    }
    return pa.record_batch(
        [filled[field.name] if field.name in filled else pa.array(zeros).cast(field.type) for field in ROWS],
        schema=ROWS,
    )

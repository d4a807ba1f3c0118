"""Batches for a log's writer, from changes spelled out in a test or from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.log import LogIdentity
from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.log.segment import UNLINKED
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.copy_text import line, lines, values_of

START = datetime(2026, 1, 1, tzinfo=UTC)

IDENTITY = LogIdentity(
    log_id="log-1",
    server="7000000000000000001",
    database="shop",
    stream="parallel_apply",
    selection="parallel_apply",
    bucket_count=BUCKET_COUNT,
    created=START,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    seqno: int
    fragno: int
    key: str | None
    operation: str = "U"
    relation_id: int = 1
    unsent: tuple[int, ...] | None = None
    values: tuple[str | None, ...] = ("v",)


def bucket_of(key: str | None, fragno: int = 0) -> int:
    return (int.from_bytes(key.encode(), "big") if key is not None else fragno) * 2654435761 % 2**32 % BUCKET_COUNT


def rows_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    columns = {
        "seqno": [change.seqno for change in changes],
        "fragno": [change.fragno for change in changes],
        "relation_id": [change.relation_id for change in changes],
        "operation": [change.operation for change in changes],
        "bucket": [bucket_of(change.key, change.fragno) for change in changes],
        "key": [change.key for change in changes],
        "key_order": [0 for _ in changes],
        "values": [line(change.values) for change in changes],
        "unsent": [bitmap(change.values, change.unsent) for change in changes],
        "old_key": ["old" if change.operation == "K" else None for change in changes],
    }
    return pa.RecordBatch.from_pydict(columns, schema=UNLINKED)


def transactions_batch(first_seqno: int, row_counts: Sequence[int]) -> pa.RecordBatch:
    numbers = range(first_seqno, first_seqno + len(row_counts))
    columns = {
        "seqno": list(numbers),
        "xid": list(numbers),
        "commit_offset": list(numbers),
        "end_offset": list(numbers),
        "commit_time": [START + timedelta(seconds=number) for number in numbers],
        "row_count": list(row_counts),
        "byte_count": list(row_counts),
        "marks": [[] for _ in numbers],
    }
    return pa.RecordBatch.from_pydict(columns, schema=TRANSACTIONS)


def history(
    first_seqno: int, transactions: int, *, rows: int = 3, keys: int = 50, value: str = "v"
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Whole transactions of `rows` updates each, keys in turn."""
    changes = [
        Change(seqno=seqno, fragno=fragno, key=str((seqno * rows + fragno) % keys), values=(f"{seqno}.{fragno}", value))
        for seqno in range(first_seqno, first_seqno + transactions)
        for fragno in range(rows)
    ]
    return rows_batch(changes), transactions_batch(first_seqno, [rows] * transactions)


def random_history(transactions: int, *, seed: int, rows: int = 4) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Many keys and incompressible values, built by column: what fills segments fast."""
    random = np.random.default_rng(seed)
    count = transactions * rows
    number = random.integers(0, count, count)
    texts = pa.array(random.integers(0, 2**62, count * 3)).cast(pa.string())
    arrays = [
        pa.array(np.repeat(np.arange(transactions), rows)),
        pa.array(np.tile(np.arange(rows), transactions)),
        pa.array(np.ones(count, dtype=np.int32)),
        pa.array(np.full(count, "U")),
        pa.array((number * 2654435761 % 2**32 % BUCKET_COUNT).astype(np.int32)),
        pa.array(number).cast(pa.string()),
        pa.array(number),
        lines(texts, pa.array(np.arange(0, count * 3 + 1, 3, dtype=np.int32))),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=UNLINKED), transactions_batch(0, [rows] * transactions)


def bitmap(values: Sequence[object], unsent: Sequence[int] | None) -> str | None:
    """One character a column, as the log has it."""
    return "".join("1" if index in unsent else "0" for index in range(len(values))) if unsent else None


def spelled(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the log with its values and its old key as lists, and its unsent columns' indexes."""
    found = dict(row)
    if "values" in row:
        found["values"] = values_of(row["values"]) if row["values"] or row["operation"] != "T" else []
    if row.get("unsent") is not None:
        found["unsent"] = [index for index, mark in enumerate(row["unsent"]) if mark == "1"]
    if row.get("old_key") is not None:
        found["old_key"] = values_of(row["old_key"])
    return found


def files_of(url: str) -> set[str]:
    """Names of the segment files that exist."""
    return {path.name for path in (Path(url) / "segments").iterdir()}

"""A log of a TPC-B-like history, four changes a transaction, without a database or a capture."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.log.segment import UNLINKED
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import lines
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from airflow_parallel_apply.pipeline.partition.key import buckets, keyless_buckets
from tests.support.written_log import make_log

Numbers = npt.NDArray[np.int64]

_BATCH: Final = 25_000
_FILLER: Final = 84


def relation(table: str, columns: tuple[str, ...], key: str | None) -> Relation:
    return Relation(
        relation_id=0,
        schema="public",
        table=table,
        replica_identity=ReplicaIdentity.KEY,
        columns=tuple(
            Column(
                name=name,
                type_name="text" if name == "filler" else "integer",
                kind=KeyKind.TEXT if name == "filler" else KeyKind.INTEGER,
                key=name == key,
                value=ValueType.parse("text" if name == "filler" else "timestamp" if name == "mtime" else "integer 32"),
            )
            for name in columns
        ),
    )


RELATIONS = (
    relation("pgbench_accounts", ("aid", "bid", "abalance", "filler"), "aid"),
    relation("pgbench_tellers", ("tid", "bid", "tbalance", "filler"), "tid"),
    relation("pgbench_branches", ("bid", "bbalance", "filler"), "bid"),
    relation("pgbench_history", ("tid", "bid", "aid", "delta", "mtime", "filler"), None),
)


def make_tpcb_log(url: str, transactions: int, *, scale: int = 10, seed: int = 1, incompressible: bool = False) -> None:
    """Seqnos 0 … transactions - 1 in a new log. `incompressible`: noise instead of pgbench's blanks."""
    random = np.random.default_rng(seed)
    make_log(url)
    writer = open_writer(url)
    ids = [writer.relation_id(found)[0] for found in RELATIONS]
    for first in range(0, transactions, _BATCH):
        count = min(_BATCH, transactions - first)
        for batch in _rows(random, ids, first, count, scale, incompressible).to_batches():
            writer.append(batch, _transactions(first, count))
    writer.commit(transactions * 10)


def _rows(
    random: np.random.Generator, ids: list[int], first: int, count: int, scale: int, incompressible: bool
) -> pa.Table:
    seqnos = np.arange(first, first + count)
    aid = random.integers(1, 100_000 * scale + 1, count)
    tid = random.integers(1, 10 * scale + 1, count)
    bid = (tid - 1) // 10 + 1
    account, teller, branch, delta = (
        pc.cast(pa.array(numbers), pa.string()) for numbers in (aid, tid, bid, random.integers(-5000, 5000, count))
    )
    null = pa.nulls(count, pa.string())
    filled = _noise(random, count) if incompressible else pa.array([" " * _FILLER] * count)
    mtime = pa.array(["2026-01-01 00:00:00.123456"] * count)
    values = (
        (account, branch, delta, filled),
        (teller, branch, delta, filled),
        (branch, delta, filled),
        (teller, branch, account, delta, mtime, null),
    )
    tables = []
    for number, (found, key, order) in enumerate(
        zip(RELATIONS, (account, teller, branch, None), (aid, tid, bid, np.zeros_like(aid)), strict=True)
    ):
        fragnos = np.full(count, number)
        bucket = keyless_buckets(seqnos, fragnos) if key is None else buckets(found.name, key)
        tables.append(
            pa.table(
                {
                    "seqno": seqnos,
                    "fragno": fragnos,
                    "relation_id": np.full(count, ids[number], dtype=np.int32),
                    "operation": pa.array(["I" if key is None else "U"] * count),
                    "bucket": bucket.astype(np.int32),
                    "key": null if key is None else key,
                    "key_order": order,
                    "values": _lines(values[number]),
                    "unsent": pa.nulls(count, pa.string()),
                    "old_key": pa.nulls(count, pa.string()),
                },
                schema=UNLINKED,
            )
        )
    rows = pa.concat_tables(tables)
    order = np.lexsort((rows.column("fragno").to_numpy(), rows.column("seqno").to_numpy()))
    return rows.take(pa.array(order)).combine_chunks()


def _noise(random: np.random.Generator, count: int) -> pa.Array:
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[random.integers(0, 16, count * _FILLER)]
    offsets = np.arange(0, (count + 1) * _FILLER, _FILLER, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))


def _transactions(first: int, count: int) -> pa.RecordBatch:
    seqnos = np.arange(first, first + count)
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.record_batch(
        {
            "seqno": seqnos,
            "xid": seqnos,
            "commit_offset": seqnos * 10,
            "end_offset": seqnos * 10 + 5,
            "commit_time": pa.array([time] * count, TRANSACTIONS.field("commit_time").type),
            "row_count": np.full(count, len(RELATIONS)),
            "byte_count": np.full(count, 400),
            "marks": pa.array([[]] * count, pa.list_(pa.string())),
        },
        schema=TRANSACTIONS,
    )


def _lines(columns: tuple[pa.Array, ...]) -> pa.StringArray:
    count, width = len(columns[0]), len(columns)
    flat = pa.concat_arrays([column.cast(pa.string()) for column in columns])
    order = np.arange(count * width).reshape(width, count).T.reshape(-1)
    offsets = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
    return lines(flat.take(pa.array(order)), offsets)

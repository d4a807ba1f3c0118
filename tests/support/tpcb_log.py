"""Row files of a TPC-B-like history, with the log's schema and layout, without a database or a capture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.event import BUCKET_COUNT, LAST_SEQNO, NO_SEQNO, Column, Relation
from airflow_parallel_apply.pipeline.log.schema import ROWS

Numbers = npt.NDArray[np.int64]

FILLER = " " * 84


def relation(relation_id: int, table: str, columns: tuple[str, ...], key: str | None) -> Relation:
    return Relation(
        relation_id=relation_id,
        schema="public",
        table=table,
        replica_identity="d",
        columns=tuple(
            Column(name=name, type_name="text" if name == "filler" else "integer", key=name == key) for name in columns
        ),
    )


RELATIONS = (
    relation(1, "pgbench_accounts", ("aid", "bid", "abalance", "filler"), "aid"),
    relation(2, "pgbench_tellers", ("tid", "bid", "tbalance", "filler"), "tid"),
    relation(3, "pgbench_branches", ("bid", "bbalance", "filler"), "bid"),
    relation(4, "pgbench_history", ("tid", "bid", "aid", "delta", "mtime", "filler"), None),
)


def write_tpcb_rows(
    directory: Path,
    transactions: int,
    *,
    scale: int = 10,
    segment_transactions: int = 100_000,
    row_groups: int = 16,
    compression: str = "zstd",
    seed: int = 1,
) -> tuple[Path, ...]:
    """Four changes a transaction, seqnos from 0; one file a segment."""
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for first in range(0, transactions, segment_transactions):
        count = min(segment_transactions, transactions - first)
        path = directory / f"{first:020d}.rows.parquet"
        _write_segment(path, _segment(random, first, count, scale), row_groups, compression)
        paths.append(path)
    return tuple(paths)


def _segment(random: np.random.Generator, first: int, count: int, scale: int) -> pa.Table:
    seqnos = np.arange(first, first + count)
    aid = random.integers(1, 100_000 * scale + 1, count)
    tid = random.integers(1, 10 * scale + 1, count)
    bid = (tid - 1) // 10 + 1
    text = [pc.cast(pa.array(numbers), pa.string()) for numbers in (aid, tid, bid, random.integers(-5000, 5000, count))]
    filler = pa.array([FILLER] * count)
    null = pa.nulls(count, pa.string())
    mtime = pa.array(["2026-01-01 00:00:00.123456"] * count)
    keys = [aid, tid, bid, seqnos * 4 + 3]
    values = [
        (text[0], text[2], text[3], filler),
        (text[1], text[2], text[3], filler),
        (text[2], text[3], filler),
        (text[1], text[2], text[0], text[3], mtime, null),
    ]
    tables = []
    for number, (key, columns) in enumerate(zip(keys, values, strict=True)):
        keyed = number < 3
        previous, following = _links(key, seqnos) if keyed else (np.full(count, NO_SEQNO), np.full(count, LAST_SEQNO))
        tables.append(
            pa.table(
                {
                    "seqno": seqnos,
                    "fragno": np.full(count, number),
                    "relation_id": np.full(count, number + 1, dtype=np.int32),
                    "operation": pa.array(["U" if keyed else "I"] * count),
                    "bucket": _bucket(key, number),
                    "key": text[number] if keyed else null,
                    "key_order": key if keyed else np.zeros(count, dtype=np.int64),
                    "previous_seqno": previous,
                    "next_seqno": following,
                    "values": _lists(columns),
                    "unsent": pa.nulls(count, pa.list_(pa.int32())),
                    "old_key": pa.nulls(count, pa.list_(pa.string())),
                },
                schema=ROWS,
            )
        )
    return pa.concat_tables(tables)


def _bucket(key: Numbers, table: int) -> npt.NDArray[np.int32]:
    mixed = (key.astype(np.uint64) + np.uint64(table << 40)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(40)) % np.uint64(BUCKET_COUNT)).astype(np.int32)


def _links(key: Numbers, seqnos: Numbers) -> tuple[Numbers, Numbers]:
    order = np.lexsort((seqnos, key))
    same = np.concatenate((key[order][1:] == key[order][:-1], [False]))
    previous, following = np.full(len(key), NO_SEQNO), np.full(len(key), LAST_SEQNO)
    following[order[:-1]] = np.where(same[:-1], seqnos[order][1:], LAST_SEQNO)
    previous[order[1:]] = np.where(same[:-1], seqnos[order][:-1], NO_SEQNO)
    return previous, following


def _lists(columns: tuple[pa.Array, ...]) -> pa.ListArray:
    count, width = len(columns[0]), len(columns)
    flat = pa.concat_arrays([column.cast(pa.string()) for column in columns])
    order = np.arange(count * width).reshape(width, count).T.reshape(-1)
    offsets = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, flat.take(pa.array(order)))


def _write_segment(path: Path, rows: pa.Table, row_groups: int, compression: str) -> None:
    bucket = rows.column("bucket").to_numpy()
    group = bucket.astype(np.int64) * row_groups // BUCKET_COUNT
    order = np.lexsort((rows.column("fragno").to_numpy(), rows.column("seqno").to_numpy(), group))
    rows = rows.take(pa.array(order))
    sizes = np.bincount(group, minlength=row_groups)
    with pq.ParquetWriter(path, ROWS, compression=compression) as writer:
        start = 0
        for size in sizes:
            if size:
                writer.write_table(rows.slice(start, int(size)), row_group_size=int(size))
            start += int(size)

"""Rows split, encoded by a pool, and written as one stream to one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.polarity import by_polarity
from airflow_parallel_apply.pipeline.encode.pool import Pool
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.errors import EncodeError

Write = Callable[[bytes], None]
"""Takes the bytes of a file, piece by piece, in the thread of the caller."""


def write_stream(
    encoder: Encoder, tables: Iterable[pa.Table], keys: Sequence[str], *, pool: Pool, ranges: int, write: Write
) -> None:
    """Write all rows as one file: those of a table in the order of keys, and of a key as they came; table after table.

    Memory: the rows of as many tables as the pool has works ahead. Errors: `EncodeError` for a format whose files have
    one body; the pool's.
    """
    if not encoder.is_joinable:
        raise EncodeError(
            f"{encoder.suffix} files cannot be written by several workers as one",
            op="encode",
            hint="Write a file for each range.",
        )
    write(encoder.head())
    _write_bodies(encoder, tables, keys, pool, ranges, write)
    write(encoder.tail())


def write_by_polarity(encoder: Encoder, rows: pa.Table, *, pool: Pool, ranges: int, write: Write) -> None:
    """Write weighted rows without a key: every deletion, then every insertion, both by all workers."""
    write(encoder.head())
    for phase in by_polarity(rows):
        # A pool's call returns when all is taken: the barrier between the phases.
        _write_bodies(encoder, [phase], (), pool, ranges, write)
    write(encoder.tail())


def _write_bodies(
    encoder: Encoder, tables: Iterable[pa.Table], keys: Sequence[str], pool: Pool, ranges: int, write: Write
) -> None:
    def works() -> Iterator[Callable[[], Iterator[bytes]]]:
        for rows in tables:
            for cursor in cursors(rows, keys, ranges):
                yield partial(_body, encoder, cursor.open)

    pool.ordered(works(), write)


def _body(encoder: Encoder, opened: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[bytes]:
    return encoder.body(opened())

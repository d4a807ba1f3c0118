"""Rows split, encoded by a pool, and written as one stream to one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.pieces import PIECE_BYTES, PIECE_ROWS
from airflow_parallel_apply.pipeline.encode.polarity import by_polarity
from airflow_parallel_apply.pipeline.encode.pool import PIECES_AHEAD, Pool
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.encode.splitter import MAX_RANGES
from airflow_parallel_apply.pipeline.errors import EncodeError

# Ranges of keys are of about equal size: one piece is left for what they have more.
_RANGE_ROWS: Final = (PIECES_AHEAD - 1) * PIECE_ROWS
_RANGE_BYTES: Final = (PIECES_AHEAD - 1) * PIECE_BYTES

Write = Callable[[bytes], None]
"""Takes the bytes of a file, piece by piece, in the thread of the caller."""


def range_count(rows: pa.Table, workers: int) -> int:
    """The number of ranges to split rows into whose output is taken in order: one for each worker at least, and none
    with more pieces than may wait, since its worker would stand still until all ranges before it are taken.
    """
    rows_count, byte_count = int(rows.num_rows), int(rows.nbytes)
    small = max(-(-rows_count // _RANGE_ROWS), -(-byte_count // _RANGE_BYTES))
    return min(max(workers, small), MAX_RANGES)


def write_stream(
    encoder: Encoder, tables: Iterable[pa.Table], keys: Sequence[str], *, pool: Pool, write: Write
) -> None:
    """Write all rows as one file: those of a table in the order of ranges of keys, those of a range as they came; table
    after table.

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
    _write_bodies(encoder, tables, keys, pool, write)
    write(encoder.tail())


def write_by_polarity(encoder: Encoder, rows: pa.Table, *, pool: Pool, write: Write) -> None:
    """Write weighted rows without a key: every deletion, then every insertion, both by all workers."""
    write(encoder.head())
    for phase in by_polarity(rows):
        # A pool's call returns when all is taken: the barrier between the phases.
        _write_bodies(encoder, [phase], (), pool, write)
    write(encoder.tail())


def _write_bodies(encoder: Encoder, tables: Iterable[pa.Table], keys: Sequence[str], pool: Pool, write: Write) -> None:
    def works() -> Iterator[Callable[[], Iterator[bytes]]]:
        for rows in tables:
            for cursor in cursors(rows, keys, range_count(rows, pool.threads)):
                yield partial(_body, encoder, cursor.open)

    pool.ordered(works(), write)


def _body(encoder: Encoder, opened: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[bytes]:
    return encoder.body(opened())

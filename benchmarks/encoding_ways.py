"""The ways to encode that `encoding` measures, by name: each takes rows of a table and gives the bytes it has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.avro.encoder import AvroEncoder
from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.open import open_encoder
from airflow_parallel_apply.pipeline.encode.pool import Pool
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.encode.stream import write_stream
from benchmarks.encoded_rows import TABLES, commit_times, log_rows, relation

TYPING: Final = "typing alone"
PLAIN_AVRO: Final = "avro, not compressed"
WAYS: Final = (TYPING, *(str(format_) for format_ in Format), PLAIN_AVRO)

_BATCH: Final = 65_536
_FILES: Final = 2
"""Files whose format has one body: one for each of two workers, and as many for one."""


def rows_of(name: str, count: int) -> tuple[pa.Table, pa.Table]:
    """So many rows of a table of `TABLES`: as the log has them, and typed."""
    raw = log_rows(TABLES[name], count)
    typed = typed_rows(raw, row_typing(relation(name)), commit_times(count))
    return pa.Table.from_batches([raw]), pa.Table.from_batches([typed])


def encode_in_threads(way: str, name: str, rows: pa.Table, threads: int) -> int:
    """The bytes that so many workers of a pool make; in order to one consumer where the format allows it."""
    typing = row_typing(relation(name))
    sizes: list[int] = []

    def take(piece: bytes) -> None:
        sizes.append(len(piece))

    pool = Pool(threads=threads)
    if way == TYPING:
        starts = range(0, rows.num_rows, _BATCH)
        pool.ordered((partial(_typed_sizes, typing, rows.slice(start, _BATCH)) for start in starts), sizes.append)
        return sum(sizes)
    encoder = _encoder(way, typing)
    if encoder.is_joinable:
        write_stream(encoder, [rows], [], pool=pool, write=take)
    else:
        pool.ordered((partial(_body, encoder, cursor) for cursor in cursors(rows, [], _FILES)), take)
    return sum(sizes)


def encode_alone(way: str, name: str, rows: pa.Table) -> Iterator[bytes]:
    """The pieces that one worker makes of the rows, without a pool. Types come as Arrow's stream."""
    typing = row_typing(relation(name))
    if way == TYPING:
        for batch in rows.to_batches(max_chunksize=_BATCH):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, typing.schema) as writer:
                writer.write_batch(typed_rows(batch, typing, commit_times(batch.num_rows)))
            yield memoryview(sink.getvalue())  # type: ignore[misc]  # bytes that nobody copies
        return
    encoder = _encoder(way, typing)
    yield encoder.head()
    yield from encoder.body(rows.to_batches(max_chunksize=_BATCH))
    yield encoder.tail()


def _encoder(way: str, typing: RowTyping) -> Encoder:
    if way == PLAIN_AVRO:
        return AvroEncoder(typing.schema, typing.table, codec="null")
    return open_encoder(Format(way), typing)


def _typed_sizes(typing: RowTyping, rows: pa.Table) -> Iterator[int]:
    for batch in rows.to_batches():
        yield typed_rows(batch, typing, commit_times(batch.num_rows)).nbytes


def _body(encoder: Encoder, cursor: Any) -> Iterator[bytes]:
    opened: Callable[[], Iterator[pa.RecordBatch]] = cursor.open
    return encoder.body(opened())

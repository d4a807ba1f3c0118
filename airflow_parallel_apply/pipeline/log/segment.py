"""Segment files: how rows and transactions become a pair of Parquet files, and come back.

The encodings were chosen by what Spark's vectorised reader took for 1,000,000 TPC-B-like rows on one core, median of
three warm runs on a busy machine: 0.7 s and 18.4 MB with those below, 1.3 s and 22.7 MB with Parquet's defaults, 0.9 s
and 27.0 MB with snappy and a dictionary of keys. Spark 4.2 from its wheel could not read Arrow's LZ4 at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.clustering import cluster
from airflow_parallel_apply.pipeline.log.directory import RESTORE, LogDirectory, file_errors, write_durable
from airflow_parallel_apply.pipeline.log.links import link
from airflow_parallel_apply.pipeline.log.options import rows_memory_bytes
from airflow_parallel_apply.pipeline.log.protocol import RowGroup, Segment
from airflow_parallel_apply.pipeline.log.schema import ROWS, STORED, TRANSACTIONS, WIDTH
from airflow_parallel_apply.pipeline.model import former

LINK_COLUMNS: Final = ("previous_seqno", "next_seqno")
UNLINKED: Final = pa.schema([field for field in ROWS if field.name not in LINK_COLUMNS])
"""`ROWS` without the columns that the writer fills."""

ROW_COST_BYTES: Final = 32
"""Weight of a row beside its values, when a file's size is guessed from what goes into it."""

_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1
_ROWS_PER_PAGE: Final = 8192
"""Pages are what a filter on seqno skips inside a row group."""
_WITH_DICTIONARY: Final = ("relation_id", "operation", "bucket", "unsent")
_WITH_STATISTICS: Final = ("seqno", "bucket", WIDTH)
_ENCODINGS: Final = {
    "seqno": "DELTA_BINARY_PACKED",
    "fragno": "DELTA_BINARY_PACKED",
    WIDTH: "DELTA_BINARY_PACKED",
    "previous_seqno": "DELTA_BINARY_PACKED",
    "next_seqno": "DELTA_BINARY_PACKED",
    "key": "PLAIN",
    "key_order": "PLAIN",
    "values": "PLAIN",
    "old_key": "PLAIN",
}
_CHECKSUM_SEPARATOR: Final = ":"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A segment's start and end; a fragno is -1 where its transaction has no row."""

    first_seqno: int
    first_fragno: int
    last_seqno: int
    last_fragno: int
    last_commit_time: datetime


def write_segment(
    directory: LogDirectory,
    name: str,
    span: Span,
    rows: pa.Table,
    transactions: pa.Table,
    *,
    bucket_count: int,
    expected_file_bytes: int,
    order_version: int,
) -> Segment:
    """Write and sync both files of a segment; their names are not synced yet.

    `rows` are `UNLINKED`, in (seqno, fragno) order and in one piece. Memory: the rows, a row group and the file.
    """
    byte_count = values_bytes(rows)
    groups, order = cluster(
        rows.column("bucket").to_numpy(),
        bucket_count=bucket_count,
        file_bytes=expected_file_bytes,
        memory_bytes=rows_memory_bytes(rows.num_rows, byte_count),
    )
    content = _encode_rows(rows, groups, order)
    rows_digest = xxhash.xxh3_128_hexdigest(content)
    write_durable(directory.rows_path(name), memoryview(content))
    file_bytes = content.size
    sink = pa.BufferOutputStream()
    pq.write_table(transactions, sink, compression=_COMPRESSION, compression_level=_COMPRESSION_LEVEL)
    content = sink.getvalue()
    write_durable(directory.transactions_path(name), memoryview(content))
    return Segment(
        name=name,
        first_seqno=span.first_seqno,
        last_seqno=span.last_seqno,
        first_fragno=span.first_fragno,
        last_fragno=span.last_fragno,
        row_count=rows.num_rows,
        transaction_count=transactions.num_rows,
        byte_count=byte_count,
        file_bytes=file_bytes,
        checksum=rows_digest + _CHECKSUM_SEPARATOR + xxhash.xxh3_128_hexdigest(content),
        last_commit_time=span.last_commit_time,
        row_groups=groups,
        order_version=order_version,
    )


def remove_segment(directory: LogDirectory, name: str) -> None:
    """Remove the files of a segment that no manifest names."""
    for path in (directory.rows_path(name), directory.transactions_path(name)):
        with file_errors(path):
            path.unlink(missing_ok=True)


def verify_segment(directory: LogDirectory, segment: Segment) -> None:
    """`LogError` that names the file when one is missing or has changed."""
    read_transactions(directory, segment)
    path = directory.rows_path(segment.name)
    digest = xxhash.xxh3_128()
    with file_errors(path), path.open("rb") as file:
        while chunk := file.read(2**22):
            digest.update(chunk)
    if digest.hexdigest() != segment.checksum.partition(_CHECKSUM_SEPARATOR)[0]:
        raise _corrupt(str(path))


def read_transactions(directory: LogDirectory, segment: Segment) -> pa.Table:
    """`TRANSACTIONS` of one segment, checked."""
    path = directory.transactions_path(segment.name)
    with file_errors(path):
        content = path.read_bytes()
    if xxhash.xxh3_128_hexdigest(content) != segment.checksum.partition(_CHECKSUM_SEPARATOR)[2]:
        raise _corrupt(str(path))
    found = pq.read_table(pa.BufferReader(content))
    return found.rename_columns([former.OFFSETS.get(name, name) for name in found.column_names]).cast(TRANSACTIONS)


def in_log_order(rows: pa.Table) -> pa.Table:
    """The same rows by (seqno, fragno)."""
    order = np.lexsort((rows.column("fragno").to_numpy(), rows.column("seqno").to_numpy()))
    return rows.combine_chunks().take(pa.array(order))


def values_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """Bytes of the rows' values, uncompressed."""
    return pc.sum(pc.binary_length(rows.column("values"))).as_py() or 0


def rows_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of rows, encoded as the log's. `schema`: `ROWS` or `STORED`."""
    return pq.ParquetWriter(
        sink,
        schema,
        compression=_COMPRESSION,
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=list(_WITH_DICTIONARY),
        column_encoding={name: encoding for name, encoding in _ENCODINGS.items() if name in schema.names},
        write_statistics=[name for name in _WITH_STATISTICS if name in schema.names],
        write_page_index=True,
        max_rows_per_page=_ROWS_PER_PAGE,
    )


def _encode_rows(rows: pa.Table, groups: tuple[RowGroup, ...], order: npt.NDArray[np.intp]) -> pa.Buffer:
    previous_seqno, next_seqno = link(rows)
    linked = rows.append_column("previous_seqno", pa.array(previous_seqno))
    linked = linked.append_column("next_seqno", pa.array(next_seqno)).select(ROWS.names)
    linked = linked.append_column(STORED.field(WIDTH), pc.binary_length(linked.column("values")))
    sink = pa.BufferOutputStream()
    with rows_writer(sink, STORED) as writer:
        start = 0
        for group in groups:
            # A group at a time: gathered into memory that is still in the cache, and used again for the next one.
            part = linked.take(pa.array(order[start : start + group.row_count])).cast(STORED)
            writer.write_table(part, row_group_size=group.row_count)
            start += group.row_count
    return sink.getvalue()


def _corrupt(path: str) -> LogError:
    return LogError(f"{path} does not match its checksum", hint=RESTORE)

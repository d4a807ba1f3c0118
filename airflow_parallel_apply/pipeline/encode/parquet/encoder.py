"""Parquet files: `ParquetEncoder`. Each range is a file of its own, since a footer knows all row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

CODECS: Final = ("zstd", "snappy", "none")


class ParquetEncoder:
    """Implements `Encoder`, by pyarrow's writer. A file is in memory until it is whole."""

    suffix = ".parquet"
    is_joinable = False

    def __init__(self, schema: pa.Schema, *, codec: str = "zstd") -> None:
        self._schema = schema
        self._codec = codec

    def head(self) -> bytes:
        return b""

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, self._schema, compression=self._codec) as writer:
            for batch in batches:
                writer.write_batch(batch)
        yield memoryview(sink.getvalue())  # type: ignore[misc]  # bytes that nobody copies

    def tail(self) -> bytes:
        return b""

"""Avro's two forms: `AvroEncoder` for object container files, `ConfluentEncoder` for messages.

The schema is checked, and the header written, by fastavro; records are made by columns (`records`), many times as fast
as by rows.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import fastavro
import pyarrow as pa
import xxhash

from airflow_parallel_apply.pipeline.encode.avro.records import records
from airflow_parallel_apply.pipeline.encode.avro.schema import avro_schema
from airflow_parallel_apply.pipeline.encode.avro.varint import varint
from airflow_parallel_apply.pipeline.encode.pieces import joined, pieces
from airflow_parallel_apply.pipeline.errors import ConfigurationError

CODECS: Final = ("null", "deflate")

_MAGIC: Final = b"\x00"
_ID_BYTES: Final = 4


class AvroEncoder:
    """Implements `Encoder`. `codec`: how blocks are compressed, `null` or `deflate`."""

    suffix = ".avro"
    is_joinable = True

    def __init__(self, schema: pa.Schema, name: str, *, codec: str = "deflate") -> None:
        if codec not in CODECS:
            raise ConfigurationError(
                f"parameter compression: {codec!r} is not usable", hint=f"For avro it takes {' or '.join(CODECS)}."
            )
        self._codec = codec
        self._schema = avro_schema(schema, name)
        # Bodies of several workers are one file: their blocks end with the same marker.
        self._marker = xxhash.xxh3_128_digest(json.dumps(self._schema).encode())

    def head(self) -> bytes:
        file = io.BytesIO()
        fastavro.writer(file, fastavro.parse_schema(self._schema), [], codec=self._codec, sync_marker=self._marker)
        return file.getvalue()

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for part in pieces(batches):
            content = self._compressed(joined(records(part)))
            yield b"".join((varint(part.num_rows), varint(len(content)), content, self._marker))

    def tail(self) -> bytes:
        return b""

    def _compressed(self, content: memoryview) -> memoryview | bytes:
        if self._codec == "null":
            return content
        deflating = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return deflating.compress(content) + deflating.flush()


class ConfluentEncoder:
    """Implements `MessageEncoder`: a zero byte, the schema's id in four bytes, the record. The schema that the id
    stands for is `schema`; `schema_id` says which, as a registry does.
    """

    def __init__(self, schema: pa.Schema, name: str, *, schema_id: Callable[[dict[str, Any]], int]) -> None:
        self.schema = avro_schema(schema, name)
        fastavro.parse_schema(self.schema)
        number = schema_id(self.schema)
        if not 0 <= number < 2 ** (8 * _ID_BYTES):
            raise ConfigurationError(f"schema id {number} is not usable", hint="It takes 0 to 4294967295.")
        self._prefix = _MAGIC + number.to_bytes(_ID_BYTES, "big")

    def messages(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        return records(batch, prefix=self._prefix)

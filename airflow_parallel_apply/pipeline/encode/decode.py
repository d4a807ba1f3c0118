"""Reading back what the encoders wrote: the rows of a file, as they were before.

Parquet, Arrow and Avro tell their types themselves; of CSV and JSON lines the reader has to say what they are. Avro and
JSON lines are read row by row in Python, some ten times as slowly as the others.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.encode.columns.bytes_text import bytes_of
from airflow_parallel_apply.pipeline.errors import ConfigurationError

_Decode = Callable[[bytes, pa.Schema, int], Iterator[pa.RecordBatch]]
_SOME_DAY: Final = "1970-01-01 "


def decoded(path: str, content: bytes, schema: pa.Schema, *, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, whose path tells its format. `schema`: what was encoded. Errors: `ConfigurationError` where a
    library is not installed.
    """
    return _DECODE[path[path.rindex(".") :]](content, schema, batch_rows)


def _parquet(content: bytes, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    del schema
    return pq.ParquetFile(io.BytesIO(content)).iter_batches(batch_rows)  # type: ignore[no-any-return]


def _arrow(content: bytes, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    del schema
    yield from pa.ipc.open_file(content).read_all().to_batches(max_chunksize=batch_rows)


def _csv(content: bytes, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    read = pyarrow.csv.read_csv(
        io.BytesIO(content),
        # No line is longer than the file.
        pyarrow.csv.ReadOptions(use_threads=False, block_size=len(content) + 1),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            column_types={name: pa.string() for name in schema.names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for batch in read.to_batches(max_chunksize=batch_rows):
        columns = [_of_texts(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _json(content: bytes, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    yield from _by_rows((json.loads(line) for line in io.BytesIO(content)), schema, batch_rows, _of_json)


def _avro(content: bytes, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        import fastavro
    except ImportError as error:
        raise ConfigurationError(
            "fastavro is not installed here", op="decode", hint="pip install 'airflow-provider-parallel-apply[avro]'"
        ) from error
    reader = fastavro.reader(io.BytesIO(content))
    written = reader.writer_schema["fields"]
    # A column may have kept the source's text in this file alone.
    fields = [
        field.with_type(pa.string()) if _is_text(one) else field for field, one in zip(schema, written, strict=True)
    ]
    yield from _by_rows(reader, pa.schema(fields), batch_rows, pa.array)


def _is_text(field: dict[str, Any]) -> bool:
    return "string" in (field["type"] if isinstance(field["type"], list) else [field["type"]])


_DECODE: Final[dict[str, _Decode]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".csv": _csv,
    ".jsonl": _json,
    ".avro": _avro,
}


def _by_rows(
    rows: Iterator[dict[str, Any]],
    schema: pa.Schema,
    batch_rows: int,
    column: Callable[[list[Any], pa.DataType], pa.Array],
) -> Iterator[pa.RecordBatch]:
    """Values by their places: names may be others in a file."""
    rows = iter(rows)
    while part := [tuple(row.values()) for row in islice(rows, batch_rows)]:
        columns = [
            column(list(values), field.type) for values, field in zip(zip(*part, strict=True), schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _of_json(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else base64.b64decode(value) for value in values], kind)
    if pa.types.is_floating(kind):
        return pa.array([float(value) if isinstance(value, str) else value for value in values], pa.float64()).cast(
            kind
        )
    if any(is_such(kind) for is_such in (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)):
        return pa.array(values, kind)
    return _of_texts(pa.array(values, pa.string()), kind)


def _of_texts(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "true")
    if pa.types.is_binary(kind):
        return bytes_of(texts)
    if pa.types.is_time(kind):
        moments = pc.cast(pc.binary_join_element_wise(_SOME_DAY, texts, ""), pa.timestamp("us"))
        return moments.cast(pa.int64()).cast(kind)
    return pc.cast(texts, kind)

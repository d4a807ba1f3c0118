"""Every encoder's occupants, and a reader of each format that is not ours: fastavro, pyarrow, Python's json and csv."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.encode.arrow.encoder import ArrowEncoder
from airflow_parallel_apply.pipeline.encode.avro.encoder import AvroEncoder
from airflow_parallel_apply.pipeline.encode.avro.schema import legal_names
from airflow_parallel_apply.pipeline.encode.csv.encoder import CsvEncoder
from airflow_parallel_apply.pipeline.encode.json.encoder import JsonEncoder
from airflow_parallel_apply.pipeline.encode.parquet.encoder import ParquetEncoder
from airflow_parallel_apply.pipeline.encode.protocol import Encoder

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("amount", pa.decimal128(12, 3)),
        ("large", pa.decimal128(38, 0)),
        ('odd "name", ü', pa.string()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("moment", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        pa.field("_operation", pa.string(), nullable=False),
    ]
)
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    ['"', "\\", "\n", "\r\n", ",", "\t", "\x01", "null", "NULL", "", "é漢🙂"]
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "flag": st.booleans(),
    "small": st.integers(-(2**15), 2**15 - 1),
    "number": st.integers(-(2**31), 2**31 - 1),
    "real": st.floats(width=32),
    "double": st.floats() | st.sampled_from([1e308, 5e-324, -0.0]),
    "amount": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda found: Decimal(found).scaleb(-3)),
    "large": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    'odd "name", ü': _TEXT,
    "data": st.binary(max_size=7),
    "day": st.dates(),
    "clock": st.times(),
    "moment": st.datetimes(),
    "instant": st.datetimes(timezones=st.just(UTC)),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {**{name: st.none() | values for name, values in _VALUES.items()}, "_operation": st.sampled_from(["insert"])}
    ),
    max_size=8,
)

ENCODERS: dict[str, Callable[[pa.Schema], Encoder]] = {
    "avro": lambda schema: AvroEncoder(schema, "public.t"),
    "avro, not compressed": lambda schema: AvroEncoder(schema, "public.t", codec="null"),
    "json": lambda schema: JsonEncoder(),
    "csv": CsvEncoder,
    "parquet": ParquetEncoder,
    "arrow": ArrowEncoder,
}


def read(encoder: Encoder, content: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of a file, as Python's values."""
    return _READERS[encoder.suffix](content, schema)


def same(value: Any) -> Any:
    """A value as it is compared: NaN equals itself, and -0 is not 0."""
    return repr(value) if isinstance(value, float) else value


def rows_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: same(value) for name, value in row.items()} for row in rows]


def _read_avro(content: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    names = legal_names(schema.names)
    rows: Any = fastavro.reader(io.BytesIO(content))
    return [{name: row[legal] for name, legal in zip(schema.names, names, strict=True)} for row in rows]


def _read_json(content: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in content.decode().split("\n")[:-1]]
    return [{field.name: _from_json(row[field.name], field.type) for field in schema} for row in rows]


def _from_json(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if pa.types.is_floating(kind):
        # The digits of a single are read as those of a double.
        return pa.array([float(value)], pa.float64()).cast(kind, safe=False)[0].as_py()
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    return _from_text(value, kind) if isinstance(value, str) else value


def _read_csv(content: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    """Python's reader does not tell an empty text from nothing; pyarrow's does."""
    header = next(csv.reader(io.StringIO(content.decode(), newline="")))
    assert header == schema.names
    options = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(schema.names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    table = pa_csv.read_csv(
        io.BytesIO(content), convert_options=options, parse_options=pa_csv.ParseOptions(newlines_in_values=True)
    )
    return [{field.name: _from_csv(row[field.name], field.type) for field in schema} for row in table.to_pylist()]


def _from_csv(value: str | None, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[value]
    if pa.types.is_floating(kind):
        return pa.array([float(value)], pa.float64()).cast(kind, safe=False)[0].as_py()
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_binary(kind):
        assert value.startswith("\\x")
        return bytes.fromhex(value[2:])
    return _from_text(value, kind)


def _from_text(value: str, kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_time(kind):
        return time.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    return value


def _read_parquet(content: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
    return found


def _read_arrow(content: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.ipc.open_file(pa.BufferReader(content)).read_all().to_pylist()
    return found


_READERS: dict[str, Callable[[bytes, pa.Schema], list[dict[str, Any]]]] = {
    ".avro": _read_avro,
    ".jsonl": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}

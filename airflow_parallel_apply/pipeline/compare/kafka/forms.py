"""Reads messages of each form: the values of a row by the names of its columns, and those as the source's texts."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.columns.types import arrow_type
from airflow_parallel_apply.pipeline.encode.formats import UNAVAILABLE
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, MessageFormat
from airflow_parallel_apply.pipeline.target.kafka.registry import registered_schema

_UNSENT: Final = CHANGE.names.index("_unsent") - len(CHANGE)
"""A place among a flat row's members, from the end: the last ones say what became of the row."""
_CONFLUENT: Final = 5
"""Bytes in front of an Avro record: a zero, and the schema's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message's row. `unsent`: names of columns that the source did not send."""

    values: Mapping[str, Any]
    unsent: tuple[str, ...] = ()


class Form(Protocol):
    """How messages hold rows."""

    def sent(self, value: bytes) -> Sent:
        """The row of a message. Errors: Python's own for a message of another form."""
        ...

    def column(self, values: list[Any], value: ValueType) -> pa.Array:
        """Values of one column, as `ComparedRows.batches` gives them."""
        ...


def form_of(address: KafkaAddress) -> Form:
    """The form of an address's messages. Errors: `ConfigurationError` where its library is not installed."""
    match address.format:
        case MessageFormat.JSON:
            return FlatJson()
        case MessageFormat.DEBEZIUM:
            return Debezium()
        case MessageFormat.AVRO:
            return Avro(address.registry)


class FlatJson:
    """A flat object. See `Form`."""

    def sent(self, value: bytes) -> Sent:
        row = json.loads(value)
        marked = row[list(row)[_UNSENT]]
        return Sent(values=row, unsent=tuple(json.loads(marked)) if marked else ())

    def column(self, values: list[Any], value: ValueType) -> pa.Array:
        if value.kind is ValueKind.FLOAT:
            return pa.array([None if one is None else float(one) for one in values], arrow_type(value))
        text = _TEXT_OF_JSON.get(value.kind, str)
        return pa.array([None if one is None else text(one) for one in values], pa.string())


class Debezium(FlatJson):
    """Debezium's envelope. See `Form`."""

    def sent(self, value: bytes) -> Sent:
        envelope = json.loads(value)
        row = envelope["after"] or envelope["before"] or {}
        return Sent(values=row, unsent=tuple(name for name, one in row.items() if one == UNAVAILABLE))


class Avro:
    """Confluent's wire format. See `Form`."""

    def __init__(self, registry: str) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise ConfigurationError(
                "fastavro is not installed here", hint="pip install 'airflow-provider-parallel-apply[avro]'"
            ) from error
        self._read: Any = fastavro.schemaless_reader
        self._schema = cache(lambda number: registered_schema(registry, number))

    def sent(self, value: bytes) -> Sent:
        if value[:1] != b"\0":
            raise ValueError("it does not begin with a schema's id")
        schema = self._schema(int.from_bytes(value[1:_CONFLUENT], "big"))
        record = self._read(io.BytesIO(value[_CONFLUENT:]), schema, None)
        named = {one.get("column", one["name"]): record[one["name"]] for one in schema["fields"]}
        marked = named[list(named)[_UNSENT]]
        return Sent(values=named, unsent=tuple(json.loads(marked)) if marked else ())

    def column(self, values: list[Any], value: ValueType) -> pa.Array:
        kind = arrow_type(value)
        if value.kind is ValueKind.FLOAT:
            return pa.array([None if one is None else float(one) for one in values], kind)
        if kind is None or value.kind is ValueKind.TEXT:
            return pa.array([None if one is None else str(one) for one in values], pa.string())
        as_text = pa.array([one if isinstance(one, str) else None for one in values], pa.string())
        if as_text.null_count == 0:
            return as_text
        typed = pa.array([None if isinstance(one, str) else one for one in values], kind)
        return pc.coalesce(as_text, texts(typed).cast(pa.string()))


def _bytes_text(value: str) -> str:
    return value if value.startswith("\\") else f"\\x{base64.b64decode(value).hex()}"


_TEXT_OF_JSON: Final[Mapping[ValueKind, Callable[[Any], str]]] = {
    ValueKind.BOOLEAN: lambda value: {True: "t", False: "f"}.get(value, value),
    ValueKind.BYTES: _bytes_text,
    ValueKind.TIMESTAMP: lambda value: value.replace("T", " "),
    ValueKind.INSTANT: lambda value: value.replace("T", " ").replace("Z", "+00"),
}
"""A column whose name `text_columns` has may have the source's text from some message on: it stays as it is."""

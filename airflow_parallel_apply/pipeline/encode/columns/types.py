"""The Arrow type of each type of values; what has none keeps the source's text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType

MAX_PRECISION: Final = 38
"""Decimal digits that every reader of the formats takes."""

_BY_SIZE: Final = {
    (ValueKind.INTEGER, 16): pa.int16(),
    (ValueKind.INTEGER, 32): pa.int32(),
    (ValueKind.INTEGER, 64): pa.int64(),
    (ValueKind.FLOAT, 32): pa.float32(),
    (ValueKind.FLOAT, 64): pa.float64(),
}
_BY_KIND: Final = {
    ValueKind.BOOLEAN: pa.bool_(),
    ValueKind.TEXT: pa.string(),
    ValueKind.BYTES: pa.binary(),
    ValueKind.DATE: pa.date32(),
    ValueKind.TIME: pa.time64("us"),
    ValueKind.TIMESTAMP: pa.timestamp("us"),
    ValueKind.INSTANT: pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTyping:
    """How one column of a relation leaves as Arrow. `type`: None where it keeps the source's text."""

    column: Column
    type: pa.DataType | None

    @property
    def is_text(self) -> bool:
        """True if readers get the source's text of a value that is no text."""
        return self.type is None

    @property
    def field(self) -> pa.Field:
        """With the source's own name of the type, which formats that keep metadata tell their readers."""
        return pa.field(
            self.column.name,
            pa.string() if self.type is None else self.type,
            metadata={"source_type": self.column.type_name},
        )


def arrow_type(value: ValueType) -> pa.DataType | None:
    """The type that holds all such values but those which `parse` refuses; None: there is none."""
    if value.kind is ValueKind.DECIMAL:
        fits = 1 <= value.precision <= MAX_PRECISION
        return pa.decimal128(value.precision, value.scale) if fits else None
    return _BY_SIZE.get((value.kind, value.size)) or _BY_KIND.get(value.kind)


def typings(relation: Relation, kept_as_text: Collection[str] = ()) -> tuple[ColumnTyping, ...]:
    """The typing of each column, in the relation's order. `kept_as_text`: names of columns that keep their text."""
    return tuple(
        ColumnTyping(column=column, type=None if column.name in kept_as_text else arrow_type(column.value))
        for column in relation.columns
    )

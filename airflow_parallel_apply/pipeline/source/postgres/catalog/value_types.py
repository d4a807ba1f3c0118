"""The meaning of texts of PostgreSQL's types: `value_type`. Texts are those of the settings that each session has."""

from __future__ import annotations

import re
from typing import Final

from airflow_parallel_apply.pipeline.model.value_type import OPAQUE, ValueKind, ValueType

_TYPES: Final = {
    "boolean": ValueType(kind=ValueKind.BOOLEAN),
    "smallint": ValueType(kind=ValueKind.INTEGER, size=16),
    "integer": ValueType(kind=ValueKind.INTEGER, size=32),
    "bigint": ValueType(kind=ValueKind.INTEGER, size=64),
    "oid": ValueType(kind=ValueKind.INTEGER, size=64),
    "real": ValueType(kind=ValueKind.FLOAT, size=32),
    "double precision": ValueType(kind=ValueKind.FLOAT, size=64),
    "text": ValueType(kind=ValueKind.TEXT),
    "character varying": ValueType(kind=ValueKind.TEXT),
    "character": ValueType(kind=ValueKind.TEXT),
    "bpchar": ValueType(kind=ValueKind.TEXT),
    '"char"': ValueType(kind=ValueKind.TEXT),
    "citext": ValueType(kind=ValueKind.TEXT),
    "name": ValueType(kind=ValueKind.TEXT),
    "uuid": ValueType(kind=ValueKind.TEXT),
    "json": ValueType(kind=ValueKind.TEXT),
    "jsonb": ValueType(kind=ValueKind.TEXT),
    "xml": ValueType(kind=ValueKind.TEXT),
    "bytea": ValueType(kind=ValueKind.BYTES),
    "date": ValueType(kind=ValueKind.DATE),
    "time without time zone": ValueType(kind=ValueKind.TIME),
    "timestamp without time zone": ValueType(kind=ValueKind.TIMESTAMP),
    "timestamp with time zone": ValueType(kind=ValueKind.INSTANT),
}
_DECIMAL: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def value_type(type_name: str, base_type: str, *, is_enum: bool) -> ValueType:
    """The type of a column's values, from the names of its type, with modifiers, and of what is below all domains,
    without them. An unconstrained numeric, a domain over a constrained one, and one whose scale is negative have no
    number of digits that could be relied upon.
    """
    if is_enum:
        return ValueType(kind=ValueKind.TEXT)
    if found := _DECIMAL.fullmatch(type_name):
        precision, scale = int(found[1]), int(found[2])
        return ValueType(kind=ValueKind.DECIMAL, precision=precision, scale=scale) if scale <= precision else OPAQUE
    return _TYPES.get(base_type, OPAQUE)

"""The Avro schema of Arrow rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

NAMESPACE: Final = "parallel_apply"

_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_]")


def avro_schema(schema: pa.Schema, name: str) -> dict[str, Any]:
    """A record with a field for each column; columns that may be null are unions. A name that Avro does not allow is
    written with `_` in place of what is not allowed; the field's property `column` has the name as it is.
    """
    names = legal_names(schema.names)
    return {
        "type": "record",
        "name": legal_names([name])[0],
        "namespace": NAMESPACE,
        "fields": [_field(field, legal, f"{legal}_decimal") for field, legal in zip(schema, names, strict=True)],
    }


def legal_names(names: list[str]) -> list[str]:
    """Names that Avro allows, all different, in the same order; those that it allows already are kept."""
    taken = {name for name in names if _is_legal(name)}
    found = []
    for name in names:
        legal = name
        if not _is_legal(name):
            legal = _ILLEGAL.sub("_", name)
            legal = f"_{legal}" if legal[:1].isdigit() or not legal else legal
            while legal in taken:
                legal += "_"
            taken.add(legal)
        found.append(legal)
    return found


def decimal_size(precision: int) -> int:
    """The bytes that hold every decimal of so many digits, with its sign."""
    digits: int = 10**precision - 1
    return digits.bit_length() // 8 + 1


def _is_legal(name: str) -> bool:
    return bool(name) and not _ILLEGAL.search(name) and not name[0].isdigit()


def _field(field: pa.Field, legal: str, type_name: str) -> dict[str, Any]:
    found = _type(field.type, type_name)
    made: dict[str, Any] = {"name": legal, "type": ["null", found] if field.nullable else found}
    if field.nullable:
        made["default"] = None
    if legal != field.name:
        made["column"] = field.name
    return made


def _type(kind: pa.DataType, name: str) -> Any:
    if pa.types.is_decimal(kind):
        return {
            "type": "fixed",
            "name": name,
            "size": decimal_size(kind.precision),
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    return next(found for is_such, found in _TYPES if is_such(kind))


_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], Any], ...]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int16, "int"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)

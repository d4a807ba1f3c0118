"""Maps the source's types to those of the target that hold their values, and tells the form in which these get there.

Every type here keeps each value that the server takes without a warning. A type that would keep another one, a rounded
number, a shorter text, a moment without its microseconds, is refused with the type that would do. A column of text
takes values of any type, as the source's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from airflow_parallel_apply.pipeline.model.change import Column
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import INTEGER_DIGITS, ValueKind
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetColumn
from airflow_parallel_apply.pipeline.target.older_rows import fill_text

TEXTS: Final = ("varchar", "tinytext", "text", "mediumtext", "longtext")
BYTES: Final = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
INTEGERS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
SEVERAL_TEXTS: Final = (KeyKind.DECIMAL, KeyKind.FLOAT, KeyKind.NOT_CANONICAL)
"""Keys whose equal values have several texts."""
MICROSECONDS: Final = 6
MOST_DIGITS: Final = 65
MOST_SCALE: Final = 38

_UTC: Final = "+00"
_KEY_LENGTH: Final = 191
"""Characters of a key's text in a table that is proposed: four columns of it fit into an index."""

_DAY: Final = r"\d{4}-\d\d-\d\d"
_TIME: Final = r"\d\d:\d\d:\d\d(\.\d{1,6})?"

PATTERNS: Final = {
    ValueKind.BOOLEAN: "[tf]",
    ValueKind.DECIMAL: r"-?\d+(\.\d+)?",
    ValueKind.FLOAT: r"(0|-?(0\.\d+|[1-9]\d*(\.\d+)?)(e[+-]?\d+)?)",
    ValueKind.BYTES: r"\\x([0-9a-f]{2})*",
    ValueKind.DATE: _DAY,
    ValueKind.TIME: _TIME,
    ValueKind.TIMESTAMP: f"{_DAY} {_TIME}",
    ValueKind.INSTANT: rf"{_DAY} {_TIME}\+00",
}
"""Patterns that the whole of a text matches where the target has the value: not NaN, infinity, a year before 1 or after
9999, nor -0, which the server shows as 0.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a column's texts become the target's values. `pattern`: of all texts that have one; empty: the server tells.
    `loading`: in LOAD DATA, made of the text `{}`; empty: the text itself. `value`: what the driver sends.
    `takes_null`: False where the server would store something else for NULL, and not warn of it.
    """

    value: Callable[[str], object] = str
    loading: str = ""
    pattern: str = ""
    takes_null: bool = True


class Refused(ValueError):  # a finding about a column, which callers handle
    """A column that would not hold the values. The text says why; `wanted`: the type that would; empty:
    none does.
    """

    def __init__(self, reason: str, wanted: str) -> None:
        super().__init__(reason)
        self.wanted = wanted


_TEXT: Final = Form()
_FORMS: Final = {
    ValueKind.BOOLEAN: Form(value=lambda text: int(text == "t"), loading="{} = 't'"),
    ValueKind.INTEGER: Form(value=int),
    ValueKind.DECIMAL: Form(value=Decimal),
    ValueKind.FLOAT: Form(value=float),
    ValueKind.BYTES: Form(value=lambda text: bytes.fromhex(text[2:]), loading="UNHEX(SUBSTR({}, 3))"),
    ValueKind.DATE: Form(),
    ValueKind.TIME: Form(),
    ValueKind.TIMESTAMP: Form(),
    ValueKind.INSTANT: Form(value=lambda text: text.removesuffix(_UTC), loading="LEFT({0}, CHAR_LENGTH({0}) - 3)"),
}


def form_of(column: Column, found: TargetColumn) -> Form:
    """The form in which a column's values get into the target's column. Errors: `Refused`."""
    wanted = proposed_type(column)
    is_text = found.type in TEXTS or column.value.kind is ValueKind.OPAQUE
    if column.key and is_text and column.kind in SEVERAL_TEXTS:
        is_kept_as_text = column.value.kind in (ValueKind.OPAQUE, ValueKind.TEXT)
        raise Refused(
            "is part of the key, and equal values of the source's have several texts", "" if is_kept_as_text else wanted
        )
    if found.is_generated:
        raise Refused("is computed here, and the source sends it", wanted)
    if found.type in TEXTS:
        _require_text(column, found, wanted)
        return _TEXT
    if column.kind is KeyKind.UUID and found.type == "uuid":
        return _TEXT
    if column.key and column.value.kind is ValueKind.OPAQUE:
        raise Refused("is part of the key, and would compare its texts otherwise than the source", wanted)
    if not _holds(column, found):
        raise Refused(f"is {found.full_type} here, which does not hold every value of the source's", wanted)
    if column.key and found.is_touched:
        raise Refused("is part of the key, and changes by itself when its row is updated", wanted)
    form = _FORMS[column.value.kind]
    # NULL would be the time of the write, or the next number.
    is_filled = found.is_numbered or (found.type == "timestamp" and not found.is_nullable)
    return Form(
        value=form.value,
        loading=form.loading,
        pattern=PATTERNS.get(column.value.kind, ""),
        takes_null=not is_filled,
    )


def proposed_type(column: Column) -> str:
    """The type to give a column of a new table."""
    value = column.value
    match value.kind:
        case ValueKind.BOOLEAN:
            return "tinyint(1)"
        case ValueKind.INTEGER:
            return {16: "smallint", 32: "int"}.get(value.size, "bigint")
        case ValueKind.DECIMAL if 1 <= value.precision <= MOST_DIGITS and 0 <= value.scale <= MOST_SCALE:
            return f"decimal({value.precision},{value.scale})"
        case ValueKind.FLOAT:
            return "double"
        case ValueKind.BYTES:
            return "varbinary(768)" if column.key else "longblob"
        case ValueKind.DATE:
            return "date"
        case ValueKind.TIME:
            return f"time({MICROSECONDS})"
        case ValueKind.TIMESTAMP | ValueKind.INSTANT:
            return f"datetime({MICROSECONDS})"
        case _ if column.key:
            collation = "utf8mb4_bin" if _pads_any(column) else "utf8mb4_nopad_bin"
            return f"varchar({_KEY_LENGTH}) CHARACTER SET utf8mb4 COLLATE {collation}"
        case _:
            return "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def literal(column: Column) -> str | None:
    """The default that gives a new column of the proposed type what rows older than it have at the source; None where
    that is NULL, or not known, or no value of the type.
    """
    text, kind = fill_text(column.fill), column.value.kind
    if text is None or (kind in PATTERNS and not re.fullmatch(PATTERNS[kind], text)):
        return None
    match kind:
        case ValueKind.BOOLEAN:
            return str(int(text == "t"))
        case ValueKind.BYTES:
            return f"X'{text[2:]}'"
        case ValueKind.INSTANT:
            text = text.removesuffix(_UTC)
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"


def _holds(column: Column, found: TargetColumn) -> bool:
    value = column.value
    is_whole = found.type in INTEGERS and not found.is_unsigned
    match value.kind:
        case ValueKind.BOOLEAN:
            return found.type == "tinyint"
        case ValueKind.INTEGER:
            return (is_whole and INTEGERS[found.type] >= value.size) or _has_digits(
                found, INTEGER_DIGITS[value.size], 0
            )
        case ValueKind.DECIMAL:
            return _has_digits(found, value.precision - value.scale, value.scale)
        case ValueKind.FLOAT:
            return found.type == "double" and not found.is_unsigned and found.scale is None
        case ValueKind.BYTES:
            return found.type in BYTES
        case ValueKind.DATE:
            return found.type == "date"
        case ValueKind.TIME:
            return found.type == "time" and found.fraction == MICROSECONDS
        case ValueKind.TIMESTAMP:
            return found.type == "datetime" and found.fraction == MICROSECONDS
        case ValueKind.INSTANT:
            return found.type in ("datetime", "timestamp") and found.fraction == MICROSECONDS
        case _:
            return False


def _has_digits(found: TargetColumn, whole: int, scale: int) -> bool:
    if found.type != "decimal" or found.is_unsigned or found.precision is None or found.scale is None:
        return False
    return found.scale >= scale and found.precision - found.scale >= whole


def _pads_any(column: Column) -> bool:
    """True if the source may take texts of different widths for equal, as those of `char(n)` never are. The name of a
    domain does not tell which of the two it is.
    """
    return column.kind is KeyKind.BLANK_PADDED and not column.type_name.startswith("character(")


def _require_text(column: Column, found: TargetColumn, wanted: str) -> None:
    if found.charset != "utf8mb4":
        raise Refused(f"has the character set {found.charset}, which lacks characters of the source's", wanted)
    if not column.key:
        return
    collation = found.collation or ""
    if _pads_any(column):
        if collation != "utf8mb4_bin":
            raise Refused(f"is part of the key, and {collation} tells apart what the source takes for equal", wanted)
        return
    is_exact = collation.endswith("_bin") and ("nopad" in collation or collation.startswith("utf8mb4_0900"))
    if not is_exact and not (column.kind in _OF_ONE_WIDTH and collation.endswith("_bin")):
        raise Refused(
            f"is part of the key, and its collation {found.collation} takes for equal what the source tells apart",
            wanted,
        )


_OF_ONE_WIDTH: Final = (KeyKind.BLANK_PADDED, KeyKind.INTEGER, KeyKind.UUID, KeyKind.TIME)
"""Their texts do not differ in the blanks that end them."""

"""Reads what logs of earlier versions say in PostgreSQL's words, from a time when there was no other source.

Frozen: whatever is stored so means what it meant to the version that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import OPAQUE, ValueKind, ValueType

IDENTITIES: Final = {"d": "key", "i": "key", "f": "full", "n": "none"}
"""Replica identities by their former names."""

OFFSETS: Final = {
    "captured_lsn": "captured_offset",
    "registered_lsn": "registered_offset",
    "below_lsn": "below_offset",
    "commit_lsn": "commit_offset",
    "end_lsn": "end_offset",
    "lsn": "offset",
}
"""Names of offsets in manifests and segments, in words of now."""

STREAMS: Final = {"system_identifier": "server", "slot": "stream", "publication": "selection"}
"""Names in a log's identity and in the entries of its readers, in words of now."""

_MODIFIERS: Final = re.compile(r"\(\d+(,-?\d+)?\)")
_KINDS: Final = {
    "smallint": KeyKind.INTEGER,
    "integer": KeyKind.INTEGER,
    "bigint": KeyKind.INTEGER,
    "numeric": KeyKind.DECIMAL,
    "real": KeyKind.FLOAT,
    "double precision": KeyKind.FLOAT,
    "text": KeyKind.TEXT,
    "character varying": KeyKind.TEXT,
    "character": KeyKind.BLANK_PADDED,
    "uuid": KeyKind.UUID,
    "date": KeyKind.TIME,
    "timestamp without time zone": KeyKind.TIME,
    "timestamp with time zone": KeyKind.TIME,
    "boolean": KeyKind.EXACT,
    "bytea": KeyKind.EXACT,
}
_VALUES: Final = {
    "boolean": ValueType(kind=ValueKind.BOOLEAN),
    "smallint": ValueType(kind=ValueKind.INTEGER, size=16),
    "integer": ValueType(kind=ValueKind.INTEGER, size=32),
    "bigint": ValueType(kind=ValueKind.INTEGER, size=64),
    "real": ValueType(kind=ValueKind.FLOAT, size=32),
    "double precision": ValueType(kind=ValueKind.FLOAT, size=64),
    "text": ValueType(kind=ValueKind.TEXT),
    "character varying": ValueType(kind=ValueKind.TEXT),
    "character": ValueType(kind=ValueKind.TEXT),
    "uuid": ValueType(kind=ValueKind.TEXT),
    "bytea": ValueType(kind=ValueKind.BYTES),
    "date": ValueType(kind=ValueKind.DATE),
    "time without time zone": ValueType(kind=ValueKind.TIME),
    "timestamp without time zone": ValueType(kind=ValueKind.TIMESTAMP),
    "timestamp with time zone": ValueType(kind=ValueKind.INSTANT),
}
_DECIMAL: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def in_words_of_now(body: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """A stored object, its keys as this version calls them."""
    return {words.get(word, word): value for word, value in body.items()}


def kind_of(type_name: str) -> KeyKind:
    """The kind of a column of which the log has the type alone, and not what lies below a domain or an enum."""
    return _KINDS.get(_MODIFIERS.sub("", type_name), KeyKind.NOT_CANONICAL)


def value_type_of(type_name: str) -> ValueType:
    """The type of the values of a column of which the log has the type's name alone."""
    if found := _DECIMAL.fullmatch(type_name):
        precision, scale = int(found[1]), int(found[2])
        return ValueType(kind=ValueKind.DECIMAL, precision=precision, scale=scale) if scale <= precision else OPAQUE
    return _VALUES.get(_MODIFIERS.sub("", type_name), OPAQUE)

"""How keys of PostgreSQL's types compare: `key_kind`. Texts are those of ISO dates, UTC and all digits of a float."""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.model.key_kind import KeyKind

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


def key_kind(base_type: str, *, is_enum: bool, is_deterministic: bool) -> KeyKind:
    """The kind of a key column, from its type's name, without modifiers and below all domains, and from whether its
    collation compares bytes.
    """
    if is_enum:
        return KeyKind.EXACT
    kind = _KINDS.get(base_type, KeyKind.NOT_CANONICAL)
    return kind if is_deterministic else KeyKind.NOT_CANONICAL

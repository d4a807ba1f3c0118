"""Reads what logs of earlier versions say in PostgreSQL's words, from a time when there was no other source.

Frozen: whatever is stored so means what it meant to the version that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_parallel_apply.pipeline.model.key_kind import KeyKind

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


def in_words_of_now(body: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """A stored object, its keys as this version calls them."""
    return {words.get(word, word): value for word, value in body.items()}


def kind_of(type_name: str) -> KeyKind:
    """The kind of a column of which the log has the type alone, and not what lies below a domain or an enum."""
    return _KINDS.get(_MODIFIERS.sub("", type_name), KeyKind.NOT_CANONICAL)

"""Tells changes of a column's type that cannot leave the table's rows as they are: `takes_rewrite`."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"([a-z ]+?)(?: ?\(.*\))?( with(?:out)? time zone)?")
_KINDS: Final = {
    "smallint": "smallint", "integer": "integer", "bigint": "bigint", "numeric": "numeric", "real": "real",
    "double precision": "double precision", "boolean": "boolean", "text": "text", "character varying": "text",
    "character": "character", "bytea": "bytea", "date": "date", "time": "time", "timestamp": "timestamp",
    "interval": "interval", "uuid": "uuid", "json": "json", "jsonb": "jsonb",
}  # fmt: skip
"""Types whose values lie in a table in different ways, by their names without modifiers. Those of one kind may share
them; so may any that is not here with another one (a domain, an oid).
"""


def takes_rewrite(old: str, new: str) -> bool:
    """True if a column cannot take another type without a new file; types as `format_type` shows them."""
    ours, theirs = _kind(old), _kind(new)
    return ours is not None and theirs is not None and ours != theirs


def _kind(type_name: str) -> str | None:
    found = _NAME.fullmatch(type_name)
    return _KINDS.get(found[1]) if found is not None else None

"""Tells changes of a column's type that cannot leave the table's rows as they are, and those that keep all texts."""

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

_INTEGERS: Final = ("smallint", "integer", "bigint")
_DECIMAL: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_TIME: Final = re.compile(r"(?P<name>timestamp|time)(?:\((?P<digits>\d)\))?(?P<zone> with(?:out)? time zone)")
_MOST_DIGITS: Final = 6
_TEXT: Final = re.compile(r"(?:text|character varying(?:\((\d+)\))?)")


def takes_rewrite(old: str, new: str) -> bool:
    """True if a column cannot take another type without a new file; types as `format_type` shows them."""
    ours, theirs = _kind(old), _kind(new)
    return ours is not None and theirs is not None and ours != theirs


def keeps_texts(old: str, new: str) -> bool:
    """True if a value of a type prints the same as one of another, if that takes it; False, too, if it is not known."""
    if old in _INTEGERS and new in (*_INTEGERS, "numeric"):
        return True
    ours, theirs = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if ours is not None:
        return new == "numeric" or (theirs is not None and ours[2] == theirs[2])
    ours, theirs = _TIME.fullmatch(old), _TIME.fullmatch(new)
    if ours is not None and theirs is not None:
        return ours["zone"] == theirs["zone"] and ours["name"] == theirs["name"] and _digits(ours) <= _digits(theirs)
    ours, theirs = _TEXT.fullmatch(old), _TEXT.fullmatch(new)
    if ours is None or theirs is None:
        return False
    return theirs[1] is None or (ours[1] is not None and int(ours[1]) <= int(theirs[1]))


def _digits(time: re.Match[str]) -> int:
    """The digits of a second's fraction."""
    return int(time["digits"] or _MOST_DIGITS)


def _kind(type_name: str) -> str | None:
    found = _NAME.fullmatch(type_name)
    return _KINDS.get(found[1]) if found is not None else None

"""Tells whether the texts of a column's values stay as they are under another type: `keeps_texts`, by the types' names,
and `column_keeps_texts`.

The names of types are those that logs have. A name that is not known here, as that of a domain is, tells nothing.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_parallel_apply.pipeline.model.change import Column
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind

_INTEGERS: Final = ("smallint", "integer", "bigint")
_DECIMAL: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_TIME: Final = re.compile(r"(?P<name>timestamp|time)(?:\((?P<digits>\d)\))?(?P<zone> with(?:out)? time zone)")
_MOST_DIGITS: Final = 6
_TEXT: Final = re.compile(r"(?:text|character varying(?:\((\d+)\))?)")
_WRITTEN_ALIKE: Final = (*_INTEGERS, "numeric", "uuid", "json", "jsonb")
"""Types whose values become the text that they print, when they become text."""
_ARRAY: Final = "[]"


def column_keeps_texts(old: Column, new: Column) -> bool:
    """The same of a column before and after a change of its type. An enum's labels are texts."""
    is_enum = old.value.kind is ValueKind.TEXT and old.kind is KeyKind.EXACT
    return old.has_type_of(new) or keeps_texts("text" if is_enum else old.type_name, new.type_name)


def keeps_texts(old: str, new: str) -> bool:
    """True if a value of a type prints the same as one of another, if that takes it; False, too, if it is not known."""
    if old.endswith(_ARRAY) and new.endswith(_ARRAY):
        return keeps_texts(old.removesuffix(_ARRAY), new.removesuffix(_ARRAY))
    ours, theirs = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if old in _INTEGERS and (new in (*_INTEGERS, "numeric") or (theirs is not None and theirs[2] == "0")):
        return True
    if ours is not None and (new == "numeric" or (theirs is not None and ours[2] == theirs[2])):
        return True
    if old in _WRITTEN_ALIKE or ours is not None:
        return new in ("text", "character varying")
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

"""Changes of type that may have changed values, though the type alone would not: `ALTER COLUMN … TYPE … USING`.

What an expression makes of values is not sent. Some changes of type keep the file of a table's rows, since each value
stays as it is, bit by bit; with an expression the same change rewrites the table. So a new file beside such a change is
a sign of an expression, unless another column's change explains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.sighting import Sighting

_PARSED: Final = re.compile(r"([a-z ]+?)(?:\((\d+)(?:,(-?\d+))?\))?( with(?:out)? time zone)?")
_TEXTS: Final = ("text", "character varying")
_MOST_DIGITS: Final = 6
"""Of a fraction of a second; the default."""


def keeps_values(old: str, new: str) -> bool:
    """Whether a column becomes another type without a rewrite of its table; types as `format_type` shows them."""
    ours, theirs = _PARSED.fullmatch(old), _PARSED.fullmatch(new)
    if old == new or ours is None or theirs is None:
        return False
    before, then = (int(one[2]) if one[2] else None for one in (ours, theirs))
    names = ours[1] + (ours[4] or ""), theirs[1] + (theirs[4] or "")
    if all(name in _TEXTS for name in names):
        return then is None or (before is not None and before <= then)
    if names[0] != names[1]:
        return False
    if names[0] == "numeric":
        return then is None or (before is not None and before <= then and (ours[3] or "0") == (theirs[3] or "0"))
    if names[0] == "bit varying":
        return then is None or (before is not None and before <= then)
    if names[0].startswith("time"):
        return then is None or then >= min(_MOST_DIGITS, _MOST_DIGITS if before is None else before)
    return False


def recast_since(before: Sighting | None, now: Sighting) -> tuple[tuple[int, str, str], ...]:
    """Columns that may have got other values by a change of type until a sighting, with those of the one before it."""
    if before is None:
        return ()
    types = dict(now.types)
    changes = [(number, old, types[number]) for number, old in before.types if types.get(number, old) != old]
    return tuple(sorted({*before.recast, *_unexplained(changes, before, now)}))


def with_recasts(relation: Relation, now: Sighting, seen: Sighting | None, known: Relation | None) -> Relation:
    """The relation with its columns marked that may have got other values since the log's last definition. `seen`: the
    last that is known from before the relation's message.
    """
    if seen is None or known is None:
        return relation
    before = {one.number: one.type_name for one in known.columns if one.number is not None}
    types = dict(seen.types)
    changes = [
        (one.number, before[one.number], one.type_name)
        for one in relation.columns
        if one.number is not None and one.number in before and before[one.number] != one.type_name
    ]
    later = {number for number, _, then in _unexplained(changes, seen, now) if types.get(number) != then}
    earlier = {
        number
        for number, old, then in changes
        for recast, from_type, to_type in seen.recast
        if recast == number and (from_type == old or to_type == then)
    }
    return replace(
        relation,
        columns=tuple(
            replace(one, is_recast=True) if one.number in earlier | later else one for one in relation.columns
        ),
    )


def _unexplained(
    changes: list[tuple[int, str, str]], before: Sighting, now: Sighting
) -> Iterator[tuple[int, str, str]]:
    """Those that keep values, where the table has a new file that no other change of a type accounts for."""
    files = dict(before.rewritten)
    is_rewritten = any(files.get(part, part) != file for part, file in now.rewritten)
    if is_rewritten and all(keeps_values(old, then) for _, old, then in changes):
        yield from changes

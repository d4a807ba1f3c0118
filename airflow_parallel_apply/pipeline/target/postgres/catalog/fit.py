"""Tells whether a column of one built-in type keeps every value of another: the source prints it, the target reads it.

Both types are texts as `format_type` makes them, modifiers and array brackets included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Fit(Enum):
    """The fate of the source's values."""

    EXACT = "exact"
    REFORMATS = "reformats"
    """The value is kept, its text is another."""
    REFUSES = "refuses"
    """Some values are an error of the unit that brings them."""
    LOSES = "loses"
    """Some values are stored as other ones, without an error."""
    UNKNOWN = "unknown"
    """A type that is not built in: only the server could tell."""


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    numbers: tuple[int, ...]


_PARSED: Final = re.compile(r"([a-z ]+?)(?:\((\d+(?:,-?\d+)?)\))?( with(?:out)? time zone)?")
_INTEGER_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_FLOATS: Final = {"real": 6, "double precision": 15}
"""Decimal digits that such a number is sure to keep."""
_BITS: Final = ("bit", "bit varying")
_FRACTIONS: Final = frozenset(
    f"{name} {zone} time zone" for name in ("timestamp", "time") for zone in ("with", "without")
)
_BUILT_IN: Final = frozenset(
    {
        *_INTEGER_DIGITS, *_FLOATS, *_FRACTIONS, "numeric", "text", "character varying", "character", "date",
        "interval", "boolean", "bytea", "uuid", "json", "jsonb", "bit", "bit varying", "inet", "cidr", "macaddr",
        "money", "xml", "oid", "name",
    }
)  # fmt: skip
_SAME_VALUE: Final = frozenset(
    {
        ("json", "jsonb"),
        ("date", "timestamp without time zone"),
        ("date", "timestamp with time zone"),
        ("timestamp without time zone", "timestamp with time zone"),
        ("timestamp with time zone", "timestamp without time zone"),
        ("time without time zone", "time with time zone"),
        ("real", "double precision"),
        ("real", "numeric"),
        ("double precision", "numeric"),
        ("cidr", "inet"),
        ("bit", "bit varying"),
    }
)
_EXACT: Final = frozenset({("jsonb", "json")})
_LOSING: Final = frozenset(
    {
        ("timestamp without time zone", "date"),
        ("timestamp with time zone", "date"),
        ("time with time zone", "time without time zone"),
        *(
            (f"timestamp {zone} time zone", f"time {other} time zone")
            for zone in ("with", "without")
            for other in ("with", "without")
        ),
        ("double precision", "real"),
        ("numeric", "real"),
        ("numeric", "double precision"),
    }
)


_FAMILIES: Final = (
    frozenset({*_INTEGER_DIGITS, *_FLOATS, "numeric"}),
    frozenset({"text", "character varying", "character"}),
    frozenset(_BITS),
)

_ALIKE: Final = (frozenset(_INTEGER_DIGITS), frozenset({"text", "character varying"}))


def is_plain_cast(old: str, new: str) -> bool:
    """True if a column takes another type by a cast that depends on no session's settings, and for which hardly anybody
    would write an expression instead: between numbers, between texts, or with another modifier alone.
    """
    ours, theirs = _parsed(old.removesuffix("[]")), _parsed(new.removesuffix("[]"))
    if ours is None or theirs is None or old.endswith("[]") != new.endswith("[]"):
        return False
    return ours.name == theirs.name or any(ours.name in family and theirs.name in family for family in _FAMILIES)


def computes_alike(source: str, target: str) -> bool:
    """True if an expression has the same text in columns of both types, whatever it rounds, cuts or fills up there, and
    the target's takes each value that the source's does.
    """
    if source == target:
        return True
    ours, theirs = _parsed(source), _parsed(target)
    if ours is None or theirs is None:
        return False
    if {ours.name, theirs.name} == {"numeric"}:
        return ours.numbers[1:] == theirs.numbers[1:] != () and ours.numbers[0] <= theirs.numbers[0]
    return any({source, target} <= family for family in _ALIKE) and fit(source, target) is Fit.EXACT


def casts_what_is_computed(old: str, new: str) -> bool:
    """True if a computed value that is cast to another type is what the expression has under that type."""
    if computes_alike(old, new) or computes_alike(new, old):
        return True
    are_texts = {name_of_built_in(old), name_of_built_in(new)} <= {"text", "character varying"}
    return are_texts and fit(old, new) is Fit.EXACT


def is_cast_by_text(old: str, new: str) -> bool:
    """True if an ordinary cast turns each value into the one that its text stands for."""
    ours, theirs = _parsed(old), _parsed(new)
    if ours is None or theirs is None or "character" in (ours.name, theirs.name):
        return False
    names = {ours.name, theirs.name}
    return names.isdisjoint(_FLOATS) and any(names <= family for family in _FAMILIES[:2])


def differ_in_limits(one: str, other: str) -> bool:
    """True if two types differ in nothing but which values they refuse: they have the same functions and operators."""
    if one == other:
        return True
    if one.endswith("[]") != other.endswith("[]"):
        return False
    names = {name_of_built_in(text.removesuffix("[]")) for text in (one, other)}
    return None not in names and (len(names) == 1 or names == {"text", "character varying"})


def fit(source: str, target: str) -> Fit:
    """Tell how the target's type takes values of the source's."""
    if source == target:
        return Fit.EXACT
    is_array = source.endswith("[]")
    if target == "text" or (is_array and target == "text[]"):
        return Fit.EXACT
    ours, theirs = _parsed(source.removesuffix("[]")), _parsed(target.removesuffix("[]"))
    if ours is None or theirs is None:
        # A domain over an array shows no brackets.
        return Fit.UNKNOWN
    if is_array != target.endswith("[]"):
        return Fit.REFUSES
    if theirs.name in ("text", "character varying", "character"):
        return _into_text(ours, theirs)
    if theirs.name == "numeric" and (ours.name in _INTEGER_DIGITS or ours.name == "numeric"):
        return _into_numeric(ours, theirs)
    if ours.name in _INTEGER_DIGITS:
        return _from_integer(ours, theirs)
    if ours.name == "numeric" and theirs.name in _FLOATS and ours.numbers and ours.numbers[0] <= _FLOATS[theirs.name]:
        return Fit.REFORMATS if ours.numbers[1:] not in ((), (0,)) else Fit.EXACT
    pair = (ours.name, theirs.name)
    if pair in _EXACT:
        return Fit.EXACT
    if pair in _LOSING:
        return Fit.LOSES
    if ours.name == theirs.name or pair in _SAME_VALUE:
        return _modified(ours, theirs)
    return Fit.REFUSES


def name_of_built_in(text: str) -> str | None:
    """The name of a built-in type without its modifiers; None for another one, and for an array."""
    found = _parsed(text)
    return None if found is None else found.name


def _parsed(text: str) -> _Type | None:
    """None for what is not built in."""
    found = _PARSED.fullmatch(text)
    if found is None:
        return None
    name = found[1] + (found[3] or "")
    numbers = tuple(int(number) for number in found[2].split(",")) if found[2] else ()
    return _Type(name, numbers) if name in _BUILT_IN else None


def _into_text(ours: _Type, theirs: _Type) -> Fit:
    if theirs.name == "character":
        same = ours.name == "character" and ours.numbers == theirs.numbers
        fits = ours.name in ("character", "character varying") and ours.numbers and ours.numbers <= theirs.numbers
        return Fit.EXACT if same else Fit.REFORMATS if fits else Fit.REFUSES
    if not theirs.numbers:
        return Fit.EXACT
    bounded = ours.name in ("character varying", "character") and bool(ours.numbers)
    return Fit.EXACT if bounded and ours.numbers <= theirs.numbers else Fit.REFUSES


def _into_numeric(ours: _Type, theirs: _Type) -> Fit:
    if not theirs.numbers:
        return Fit.EXACT
    precision, scale = (*theirs.numbers, 0)[:2]
    if ours.name in _INTEGER_DIGITS:
        before, after = _INTEGER_DIGITS[ours.name], 0
    elif not ours.numbers:
        return Fit.LOSES
    else:
        whole, after = (*ours.numbers, 0)[:2]
        before = whole - after
    if after > scale:
        return Fit.LOSES
    if before > precision - scale:
        return Fit.REFUSES
    return Fit.EXACT if after == scale else Fit.REFORMATS


def _from_integer(ours: _Type, theirs: _Type) -> Fit:
    digits = _INTEGER_DIGITS[ours.name]
    if theirs.name in _INTEGER_DIGITS:
        return Fit.EXACT if digits <= _INTEGER_DIGITS[theirs.name] else Fit.REFUSES
    if theirs.name in _FLOATS:
        return Fit.EXACT if digits <= _FLOATS[theirs.name] else Fit.LOSES
    return Fit.REFUSES


def _modified(ours: _Type, theirs: _Type) -> Fit:
    """Types of one name, or of two that hold the same values, by their modifiers."""
    if theirs.name in _FRACTIONS or theirs.name == "interval":
        digits = ours.numbers[0] if ours.numbers else 6
        if ours.name != "date" and theirs.numbers and theirs.numbers[0] < digits:
            return Fit.LOSES
    elif theirs.name in _BITS:
        longer = theirs.name == "bit varying" and (
            not theirs.numbers or (ours.numbers and ours.numbers <= theirs.numbers)
        )
        return Fit.EXACT if longer else Fit.REFUSES
    elif theirs.name == "numeric" and theirs.numbers:
        return Fit.LOSES
    return Fit.EXACT if ours.name == theirs.name else Fit.REFORMATS

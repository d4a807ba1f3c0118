"""Types of values in words that no source owns: by them a column's texts become typed, exactly or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self


class ValueKind(StrEnum):
    """The meaning of a column's texts. A source's catalog maps its types to these; logs keep the words."""

    BOOLEAN = "boolean"
    """`t` or `f`."""
    INTEGER = "integer"
    """Digits, perhaps behind a minus; of `size` bits."""
    DECIMAL = "decimal"
    """`precision` digits, `scale` of them behind the point, all of them written; or NaN."""
    FLOAT = "float"
    """The shortest text that is exact, of `size` bits; NaN, Infinity, -Infinity."""
    TEXT = "text"
    """Characters that stand for themselves."""
    BYTES = "bytes"
    r"""`\x` and two hexadecimal digits for each byte."""
    DATE = "date"
    """ISO 8601; `infinity`, or a year outside of 0001 to 9999 in the source's form."""
    TIME = "time"
    """A time of the day, to the microsecond; 24:00:00."""
    TIMESTAMP = "timestamp"
    """A date and a time of the day with a blank between them, in no zone."""
    INSTANT = "instant"
    """The same in UTC, and behind it `+00`."""
    OPAQUE = "opaque"
    """Nothing else than the source's own text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """A kind, with as much about its size as it has. `size`: bits. `precision`, `scale`: decimal digits."""

    kind: ValueKind
    size: int = 0
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        """The form that logs keep, such as `integer 32` and `decimal 10 2`."""
        match self.kind:
            case ValueKind.INTEGER | ValueKind.FLOAT:
                return f"{self.kind} {self.size}"
            case ValueKind.DECIMAL:
                return f"{self.kind} {self.precision} {self.scale}"
            case _:
                return str(self.kind)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`. `ValueError` for anything else."""
        word, *numbers = text.split() or [""]
        kind = ValueKind(word)
        match kind, [int(number) for number in numbers]:
            case ((ValueKind.INTEGER | ValueKind.FLOAT), [size]):
                return cls(kind=kind, size=size)
            case ValueKind.DECIMAL, [precision, scale]:
                return cls(kind=kind, precision=precision, scale=scale)
            case _, [] if kind not in (ValueKind.INTEGER, ValueKind.FLOAT, ValueKind.DECIMAL):
                return cls(kind=kind)
        raise ValueError(f"{text!r} is no type of values")


INTEGER_DIGITS: Final = {16: 5, 32: 10, 64: 19}
"""Decimal digits of the largest integers, by their bits."""

OPAQUE: Final = ValueType(kind=ValueKind.OPAQUE)
"""The type of a column whose type nobody has told."""

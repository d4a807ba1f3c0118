"""Kinds of key columns: by them equal keys get one text, and one bucket, whichever source they come from (law 1)."""

from __future__ import annotations

from enum import StrEnum


class KeyKind(StrEnum):
    """The way a unique index compares the texts that a source sends of a column, and how they sort. A source's catalog
    maps its types to these; logs keep the words.
    """

    INTEGER = "integer"
    """Digits, of 64 bits at most. Equal if and only if the texts are."""
    DECIMAL = "decimal"
    """Without an exponent. Equal numbers may differ in the zeros that end their fraction."""
    FLOAT = "float"
    """The shortest text that is exact. -0 equals 0."""
    TEXT = "text"
    """Compared by its bytes."""
    BLANK_PADDED = "blank padded"
    """The same, whatever blanks follow."""
    UUID = "uuid"
    """In lower case, with hyphens."""
    TIME = "time"
    """A date, or a moment without a zone or in UTC, as ISO 8601 with a blank."""
    EXACT = "exact"
    """Equal if and only if the texts are; of no order that is known."""
    NOT_CANONICAL = "not canonical"
    """Equality is not that of any text we can make: the whole table lies in one bucket."""

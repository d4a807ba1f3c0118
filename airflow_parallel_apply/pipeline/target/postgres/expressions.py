"""What computes a generated column, at the source and here: expressions as their servers print them."""

from __future__ import annotations

import re
from typing import Final

_DEFINITION: Final = re.compile(r"(.+?) GENERATED ALWAYS AS \((.*)\) (?:STORED|VIRTUAL)", re.DOTALL)
_BLANKS: Final = re.compile(r"\s+")


def type_of(definition: str) -> str:
    """Of a column, by what ADD COLUMN takes for it."""
    found = _DEFINITION.fullmatch(definition)
    return found[1] if found else ""


def expression_of(definition: str) -> str:
    """The same for what computes the column."""
    found = _DEFINITION.fullmatch(definition)
    return found[2] if found else ""


def computes(type_name: str, expression: str | None, definition: str) -> bool:
    """Whether a column of a type, with its expression, is what a definition says."""
    return (
        expression is not None
        and type_name == type_of(definition)
        and _BLANKS.sub(" ", expression) == _BLANKS.sub(" ", expression_of(definition))
    )

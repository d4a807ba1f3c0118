"""The text of a generated column, as the source's catalog prints it and ADD COLUMN takes it."""

from __future__ import annotations

import re
from typing import Final

_DEFINITION: Final = re.compile(r"(.+?) GENERATED ALWAYS AS \((.*)\) (?:STORED|VIRTUAL)", re.DOTALL)
_VIRTUAL: Final = " VIRTUAL"
_STORED: Final = " STORED"
_OF_ITS_SERVER: Final = re.compile(r"\btableoid\b")
_FIRST_WITH_VIRTUAL: Final = 180000


def definition_of(type_name: str, expression: str, *, is_virtual: bool) -> str:
    """The text that ADD COLUMN takes."""
    return f"{type_name} GENERATED ALWAYS AS ({expression}){_VIRTUAL if is_virtual else _STORED}"


def type_of(definition: str) -> str:
    """The type of a column, from the text that ADD COLUMN takes for it."""
    found = _DEFINITION.fullmatch(definition)
    return found[1] if found else ""


def expression_of(definition: str) -> str:
    """The same for what computes the column."""
    found = _DEFINITION.fullmatch(definition)
    return found[2] if found else ""


def is_virtual(definition: str) -> bool:
    """True if no value of it is stored, so that each is computed anew."""
    return definition.endswith(_VIRTUAL)


def reads_its_server(definition: str) -> bool:
    """True if it is computed of what no two servers have alike."""
    return bool(_OF_ITS_SERVER.search(expression_of(definition)))


def as_taken(definition: str, server_version: int) -> str:
    """The same in the words of a server of that version: before 18 each generated column is a stored one."""
    if server_version < _FIRST_WITH_VIRTUAL and is_virtual(definition):
        return definition.removesuffix(_VIRTUAL) + _STORED
    return definition

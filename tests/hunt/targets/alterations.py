"""Simple ALTER TABLE statements as data, for a person who makes the same change in another product's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

_ALTER: Final = re.compile(
    r"ALTER TABLE (?P<schema>\w+)\.(?P<table>\w+) (?:"
    r"(?P<add>ADD COLUMN) (?P<added>\w+) (?P<type>\w+)(?: NOT NULL)?(?: DEFAULT (?P<default>\d+))?|"
    r"(?P<drop>DROP COLUMN) (?P<dropped>\w+)|"
    r"(?P<rename>RENAME COLUMN) (?P<old>\w+) TO (?P<new>\w+))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """One change of a table's columns. `type_name`: the source's; `default`: what older rows get, as SQL."""

    schema: str
    table: str
    action: Literal["add", "drop", "rename"]
    column: str
    new_name: str = ""
    type_name: str = ""
    default: str = ""


def alterations(statements: Iterable[str]) -> Iterator[Alteration]:
    """Those of the statements that change columns, in their order; others change nothing at the target."""
    for statement in statements:
        found = _ALTER.fullmatch(statement.strip())
        if found is None:
            continue
        place = {"schema": found["schema"], "table": found["table"]}
        if found["add"]:
            yield Alteration(
                **place, action="add", column=found["added"], type_name=found["type"], default=found["default"] or ""
            )
        elif found["drop"]:
            yield Alteration(**place, action="drop", column=found["dropped"])
        else:
            yield Alteration(**place, action="rename", column=found["old"], new_name=found["new"])

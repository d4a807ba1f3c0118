"""Types that change under the columns that have them: labels, domains, attributes of composite types, names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import ROWS, RUN, Recipe
from tests.hunt.tables import Column, Table


def _with_column(dice: random.Random, tables: Sequence[Table], kind: str, value: str) -> tuple[Table, str, list[str]]:
    """A table with a column of a type of its own, which nothing else has, and what makes it; some rows have a value."""
    table, name = dice.choice(tables), f"n{dice.randrange(1000)}"
    some = f"{table.key} % 2 = 0" if table.key else "true"
    table.columns.append(Column(name=name, type_name=kind))
    make = [
        f"ALTER TABLE {table.path} ADD COLUMN {name} {kind}",
        f"UPDATE {table.path} SET {name} = {value} WHERE {some}",
    ]
    return table, name, [*make, *dice.choice(([RUN], [RUN], [ROWS]))]


def _named(dice: random.Random, stem: str) -> tuple[str, str]:
    """The name of a type, and another one that it may get; with capitals, as some tools make them, or without."""
    name = f"{stem}{dice.randrange(1000)}"
    return dice.choice(((name, f"{name}_b"), (f'"{name.title()}"', f'"{name.title()}B"')))


def _altered(
    form: str, kind: str, definition: str, make: Sequence[str], alter: Sequence[str], then: Sequence[str]
) -> list[str]:
    """The statements that make a type or domain and a column of it, alter it step by step, and go on."""
    altered = [f"ALTER {form} public.{kind} {step}" for step in alter]
    return [f"CREATE {form} public.{kind} {definition}", *make, *altered, *then]


def composite(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Attributes come, go, come again and are renamed: older values print otherwise, and no row is sent."""
    kind, _ = _named(dice, "pair")
    inside = dice.choice(("", "[]"))
    value = f"ROW(1, 'x')::{kind}" if not inside else f"ARRAY[ROW(1, 'x')::{kind}]"
    table, name, make = _with_column(dice, tables, f"{kind}{inside}", value)
    alter = dice.choice(
        (
            ["ADD ATTRIBUTE more integer CASCADE"],
            ["DROP ATTRIBUTE t CASCADE"],
            ["DROP ATTRIBUTE t", "ADD ATTRIBUTE t text"],
            ["RENAME ATTRIBUTE t TO u CASCADE"],
            ["ADD ATTRIBUTE more integer, DROP ATTRIBUTE t"],
        )
    )
    fresh = f"UPDATE {table.path} SET {name} = {name} WHERE {name} IS NOT NULL"
    return Recipe(
        statements=_altered(
            "TYPE", kind, "AS (n integer, t text)", make, alter, dice.choice(([], [ROWS], [fresh]))
        ),
        names=[table.name, name, kind.strip('"')], alone=True,
    )  # fmt: skip


def labels(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Add a label of an enum before others, rename one, or swap two; or rename the type itself."""
    kind, other = _named(dice, "mood")
    table, name, make = _with_column(dice, tables, kind, "'one'")
    alter = dice.choice(
        (
            ["ADD VALUE 'zero' BEFORE 'one'"],
            ["RENAME VALUE 'one' TO 'uno'"],
            ["RENAME VALUE 'one' TO 'x'", "RENAME VALUE 'two' TO 'one'", "RENAME VALUE 'x' TO 'two'"],
            [f"RENAME TO {other}"],
        )
    )
    used = "'zero'" if "ADD" in alter[0] else name
    return Recipe(
        statements=_altered(
            "TYPE", kind, "AS ENUM ('one', 'two')", make, alter,
            dice.choice(([], [ROWS], [f"UPDATE {table.path} SET {name} = {used}"])),
        ),
        names=[table.name, name, kind.strip('"')], alone=True,
    )  # fmt: skip


def domain(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Constraints come and go, a default is set, the domain is renamed or moved: values stay."""
    kind, other = _named(dice, "small")
    table, name, make = _with_column(dice, tables, kind, "5")
    alter = dice.choice(
        (
            ["DROP CONSTRAINT low"],
            ["ADD CONSTRAINT high CHECK (VALUE > 0) NOT VALID", "VALIDATE CONSTRAINT high"],
            ["SET DEFAULT 7"],
            [f"RENAME TO {other}"],
        )
    )
    used = "50" if "DROP" in alter[0] else "6"
    return Recipe(
        statements=_altered(
            "DOMAIN", kind, "AS integer CONSTRAINT low CHECK (VALUE < 10)", make, alter,
            dice.choice(([ROWS], [f"UPDATE {table.path} SET {name} = {used} WHERE {name} IS NOT NULL"])),
        ),
        names=[table.name, name, kind.strip('"')],
    )  # fmt: skip


TYPE_CHANGES: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "composite type altered": composite, "labels altered": labels, "domain altered": domain,
}  # fmt: skip

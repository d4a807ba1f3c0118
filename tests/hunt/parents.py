"""Columns of tables that others inherit from: their names change hands, and children come before or behind that."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import RUN, Recipe, recopy_of
from tests.hunt.step import Step
from tests.hunt.tables import Table

_CHANGES: Final = (
    ("ABOVE RENAME COLUMN a TO z", "ABOVE ADD COLUMN a text"),
    ("ABOVE RENAME COLUMN a TO z", "ABOVE ADD COLUMN a integer DEFAULT 5"),
    ("ABOVE RENAME COLUMN a TO z", "ABOVE RENAME COLUMN b TO a", "ABOVE RENAME COLUMN z TO b"),
    ("ABOVE DROP COLUMN b", "ABOVE RENAME COLUMN a TO b"),
    ("ABOVE DROP COLUMN a", "ABOVE RENAME COLUMN b TO a", "ABOVE ADD COLUMN b text"),
    ("ABOVE DROP COLUMN a", "ABOVE ADD COLUMN a text"),
    ("ABOVE RENAME COLUMN a TO z",),
    ("ABOVE ADD COLUMN z text DEFAULT 'z'",),
    ("CHILD DROP COLUMN own", "ABOVE RENAME COLUMN b TO own"),
    ("CHILD RENAME COLUMN own TO kept", "ABOVE ADD COLUMN own text DEFAULT 'own'"),
    ("CHILD RENAME COLUMN own TO kept", "ABOVE RENAME COLUMN a TO own"),
    ("CHILD NO INHERIT public.{above}", "ABOVE RENAME COLUMN a TO z", "CHILD RENAME COLUMN a TO z",
     "CHILD INHERIT public.{above}"),
)  # fmt: skip
"""Alterations of the parent, or of one of its children."""


def parents_columns(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A parent's columns pass their names on; then rows of it, its children and their child come in any order, and some
    of these are copied anew in between.
    """
    number, kind = dice.randrange(1000), "parent's columns"
    above, child, beside, below = (f"{name}{number}" for name in ("above", "child", "beside", "below"))
    inheriting = (above, child, beside, below)
    make = (
        f"CREATE TABLE public.{above} (id integer PRIMARY KEY, a text, b text, c integer)",
        f"CREATE TABLE public.{child} (own text, PRIMARY KEY (id)) INHERITS (public.{above})",
        f"CREATE TABLE public.{beside} (PRIMARY KEY (id)) INHERITS (public.{above})",
        f"CREATE TABLE public.{below} (PRIMARY KEY (id)) INHERITS (public.{child})",
    )
    fill = "SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 4) i"
    filled = tuple(f"INSERT INTO public.{name} (id, a, b) {fill}" for name in inheriting)
    own = (f"UPDATE public.{child} SET own = 'own' || id",)
    altered = [
        f"ALTER TABLE public.{above if one.startswith('ABOVE') else child} {one[len('ABOVE ') :].format(above=above)}"
        for one in dice.choice(_CHANGES)
    ]
    rows = [
        f"INSERT INTO public.{name} (id) VALUES ({first})"
        for first in dice.choice(((10,), (10, 11)))
        for name in dice.sample(inheriting, len(inheriting))
    ]
    behind: list[str] = []
    for row in rows:
        behind += dice.choice(([], [], [RUN]))
        behind += [recopy_of(f"public.{dice.choice(inheriting)}")] if dice.random() < 0.15 else []
        behind.append(row)
    names = (*inheriting, "a", "b", "z", "own", "kept")
    changed = ["; ".join(altered)] if dice.random() < 0.5 else altered
    return [
        Step(do="both", sql=make, kind=kind, names=names), Step(do="source", sql=(*filled, *own)),
        *dice.choice(([Step(do="run")], [Step(do="run")], [])),
        Recipe(statements=[*changed, *behind], names=[*names], alone=True), Step(do="run"),
        Step(do="source", sql=tuple(f"UPDATE public.{name} SET c = id" for name in inheriting)),
    ]  # fmt: skip


PARENTS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "parent's columns": parents_columns,
}

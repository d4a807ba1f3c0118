"""Tables that hang together: by a type, by inheritance, by a foreign key, by a copy that takes the other's place."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe, add_nullable
from tests.hunt.partitioning import sent
from tests.hunt.tables import Column, Table


def _keyed(tables: Sequence[Table]) -> list[Table]:
    return [
        one for one in tables
        if one.create[0].endswith("PRIMARY KEY (id))") and not one.leaves and not one.more and one.column("id").is_sent
    ]  # fmt: skip


def typed(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A table is bound to a composite type, which then is altered for it, and is its own again."""
    able = [one for one in _keyed(tables) if all(column.is_sent for column in one.columns)]
    if not able:
        return add_nullable(dice, dice.choice(tables))
    table, number = dice.choice(able), dice.randrange(1000)
    kind, name = f"shape{number}", f"n{number}"
    listed = ", ".join(f"{column.name} {column.type_name}" for column in table.columns)
    table.columns.append(Column(name=name, type_name="integer"))
    return Recipe(
        statements=[
            f"{BY_TOOL}CREATE TYPE public.{kind} AS ({listed})",
            f"{BY_TOOL}ALTER TABLE {table.path} OF public.{kind}", ROWS,
            *dice.choice(([], [RUN])), f"ALTER TYPE public.{kind} ADD ATTRIBUTE {name} integer CASCADE", ROWS,
            f"{BY_TOOL}ALTER TABLE {table.path} NOT OF", ROWS,
        ],
        names=[table.name, name, kind], alone=True,
    )  # fmt: skip


def inheriting(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A table of its own becomes a child, inherits what its parent gets, and is on its own again."""
    able = _keyed(tables)
    if not able:
        return add_nullable(dice, dice.choice(tables))
    table, number = dice.choice(able), dice.randrange(1000)
    child, name = f"{table.name}_kid{number}", f"n{number}"
    add = [f"ALTER TABLE {table.path} ADD COLUMN {name} integer"] if dice.random() < 0.5 else []
    if add:
        table.columns.append(Column(name=name, type_name="integer"))
    alter = f"ALTER TABLE {table.schema}.{child}"
    rows = f"INSERT INTO {table.schema}.{child} (id) SELECT i FROM generate_series(80001, 80004) i"
    return Recipe(
        statements=[
            f"CREATE TABLE {table.schema}.{child} (LIKE {table.path} INCLUDING ALL)", *dice.choice(([], [RUN])), rows,
            f"{alter} INHERIT {table.path}", ROWS, *add, f"UPDATE {table.path} SET id = id WHERE id > 80000", ROWS,
            *dice.choice(([], [f"{alter} NO INHERIT {table.path}", f"DELETE FROM {table.path} WHERE id > 80002"])),
        ],
        names=[table.name, child, name],
    )  # fmt: skip


def copied_and_swapped(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """CREATE TABLE AS, or LIKE, filled, and put in the place of the table in one transaction."""
    able = _keyed(tables)
    if not able:
        return add_nullable(dice, dice.choice(tables))
    table, number = dice.choice(able), dice.randrange(1000)
    new, old, columns = f"{table.name}_as{number}", f"{table.name}_was{number}", sent(table)
    make = dice.choice(
        (
            [f"CREATE TABLE {table.schema}.{new} AS TABLE {table.path}",
             f"ALTER TABLE {table.schema}.{new} ADD PRIMARY KEY (id)"],
            [f"CREATE TABLE {table.schema}.{new} (LIKE {table.path} INCLUDING ALL)",
             f"INSERT INTO {table.schema}.{new} ({columns}) SELECT {columns} FROM {table.path}"],
        )
    )  # fmt: skip
    swap = f"ALTER TABLE {table.path} RENAME TO {old}; ALTER TABLE {table.schema}.{new} RENAME TO {table.name}"
    gone = dice.choice(([], [f"DROP TABLE {table.schema}.{old}"]))
    statements = [f"LOCK TABLE {table.path}; {'; '.join(make)}; {swap}", ROWS, *gone, ROWS]
    return Recipe(statements=statements, names=[table.name, new, old])


def other_order(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A partition whose columns lie in another order, and which has lost one, is attached empty and filled."""
    table = next((one for one in tables if one.leaves and "BY RANGE" in one.create[0] and one.schema == "public"), None)
    if table is None:
        return add_nullable(dice, dice.choice(tables))
    new = f"{table.name}_odd{dice.randrange(1000)}"
    listed = ", ".join(
        f"{one.name} {one.type_name}{'' if one.nullable else ' NOT NULL'}"
        for one in reversed(table.columns)
        if one.is_sent
    )
    columns = sent(table)
    rows = f"SELECT {columns.replace('id', 'id + 600000')} FROM {table.path} WHERE id BETWEEN 0 AND 900"
    make = (
        f"CREATE TABLE public.{new} (gone text, {listed}, PRIMARY KEY (id)); ALTER TABLE public.{new} DROP COLUMN gone"
    )
    return Recipe(
        statements=[
            make, f"ALTER TABLE {table.path} ATTACH PARTITION public.{new} FOR VALUES FROM (600000) TO (700000)",
            f"INSERT INTO {dice.choice((table.path, f'public.{new}'))} ({columns}) {rows}", *dice.choice(([], [RUN])),
            f"UPDATE {table.path} SET id = id + 1000 WHERE id BETWEEN 600000 AND 600900", ROWS,
        ],
        names=[table.name, new],
    )  # fmt: skip


RELATIONS: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "typed table": typed, "inheriting": inheriting, "copied and swapped": copied_and_swapped,
    "partition of another order": other_order,
}  # fmt: skip

"""Changes that are taken back while nobody looks, with rows in between: the catalog looks as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe
from tests.hunt.tables import Column, Table
from tests.hunt.whole_tables import truncate


def _there_and_back(dice: random.Random, there: list[str], back: list[str]) -> list[str]:
    """With rows in between, sometimes with a run that sees it, and rows behind it."""
    between = dice.choice(([ROWS], [ROWS], [ROWS, ROWS], [ROWS, RUN, ROWS]))
    return [*there, *between, *back, *dice.choice(([], [ROWS]))]


def table_name(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A table leaves its name or its schema, and comes back; rows are written under the other name."""
    table = dice.choice(tables)
    path, name, other = table.path, table.name, f"away{dice.randrange(1000)}"
    there, back, away = dice.choice(
        (
            (f"ALTER TABLE {path} RENAME TO {other}", f"ALTER TABLE {table.schema}.{other} RENAME TO {name}",
             f"{table.schema}.{other}"),
            (f"CREATE SCHEMA IF NOT EXISTS shop; ALTER TABLE {path} SET SCHEMA shop",
             f"ALTER TABLE shop.{name} SET SCHEMA {table.schema}", f"shop.{name}"),
            (f"CREATE SCHEMA IF NOT EXISTS elsewhere; ALTER TABLE {path} SET SCHEMA elsewhere",
             f"ALTER TABLE elsewhere.{name} SET SCHEMA {table.schema}", f"elsewhere.{name}"),
        )
    )  # fmt: skip
    row = table.insert(dice, 2).replace(path, away, 1)
    namesake = dice.choice(
        ([], [f"CREATE TABLE {path} (LIKE {away} INCLUDING ALL)", table.insert(dice, 2), f"DROP TABLE {path}"])
    )
    return Recipe(
        statements=[there, row, *namesake, *dice.choice(([], [RUN])), back, ROWS],
        names=[name, other, "shop", "elsewhere"],
    )


def tables_swapped(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Two tables bear each other's names for some rows."""
    if len(tables) < 2:
        return table_name(dice, tables)
    one, other = dice.sample(list(tables), 2)
    if one.schema != other.schema:
        return table_name(dice, tables)
    swap = [
        f"ALTER TABLE {one.path} RENAME TO swapping",
        f"ALTER TABLE {other.path} RENAME TO {one.name}",
        f"ALTER TABLE {one.schema}.swapping RENAME TO {other.name}",
    ]
    rows = [
        one.insert(dice, 2).replace(one.path, other.path, 1),
        other.insert(dice, 2).replace(other.path, one.path, 1),
    ]
    swapped = ["; ".join(swap)] if dice.random() < 0.5 else swap
    return Recipe(
        statements=[*swapped, *rows, *dice.choice(([], [RUN])), *swapped, ROWS],
        names=[one.name, other.name, "swapping"],
    )


def column_name(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """One column's name, or those of two that are exchanged."""
    able = [one for one in tables if len(one.plain()) >= 2]
    if not able:
        return truncate(dice, tables)
    table = dice.choice(able)
    one, other = dice.sample(table.plain(), 2)
    rename = f"ALTER TABLE {table.path} RENAME COLUMN {{}} TO {{}}"
    number = f"n{dice.randrange(1000)}"
    if dice.random() < 0.5:
        row = table.insert(dice, 2).replace(f"{one.name}", number, 1)
        there, back = [rename.format(one.name, number)], [rename.format(number, one.name)]
    else:
        there = [
            rename.format(one.name, "away"), rename.format(other.name, one.name), rename.format("away", other.name)
        ]  # fmt: skip
        back, row = there, f"UPDATE {table.path} SET {one.name} = {other.name}"
    return Recipe(
        statements=[*there, row, ROWS, *dice.choice(([], [RUN])), *back, ROWS],
        names=[table.name, one.name, other.name, number],
    )  # fmt: skip


def column_type(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Another type and back, by casts or by expressions, which older rows keep traces of."""
    able = [one for one in tables if one.plain()]
    if not able:
        return truncate(dice, tables)
    table = dice.choice(able)
    column = dice.choice(table.plain())
    name, kind = column.name, column.type_name
    alter = f"ALTER TABLE {table.path} ALTER COLUMN {name} TYPE"
    there = f"{alter} text USING {dice.choice(('{0}::text', 'NULL', 'lower({0}::text)')).format(name)}"
    back = f"{alter} {kind} USING {name}::{kind}"
    return Recipe(statements=_there_and_back(dice, [there], [back]), names=[table.name, name])


def column_gone(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A column that comes and goes again, or is computed for a while, with rows under the definition in between."""
    table, name = dice.choice(tables), f"n{dice.randrange(1000)}"
    add, drop = f"ALTER TABLE {table.path} ADD COLUMN {name}", f"ALTER TABLE {table.path} DROP COLUMN {name}"
    kind = dice.choice(("integer", "integer NOT NULL DEFAULT 5", "uuid DEFAULT gen_random_uuid()", "text"))
    again = dice.choice(([], [f"{add} {kind}"], [f"{add} text"]))
    if again:
        table.columns.append(Column(name=name, type_name=again[0].split()[5]))
    return Recipe(statements=[*_there_and_back(dice, [f"{add} {kind}"], [drop]), *again], names=[table.name, name])


def identity(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The replica identity, and rows that are changed under the other one."""
    able = [one for one in tables if one.takes_changes and "PRIMARY" in one.create[0] and not one.leaves]
    if not able:
        return table_name(dice, tables)
    table = dice.choice(able)
    alter = f"ALTER TABLE {table.path} REPLICA IDENTITY"
    change = (
        f"UPDATE {table.path} SET {dice.choice(table.plain() or table.columns).name} = NULL WHERE {table.some(dice)}"
    )
    there = dice.choice(("FULL", "FULL", "NOTHING"))
    between = [change, f"DELETE FROM {table.path} WHERE {table.some(dice)}"] if there == "FULL" else [ROWS]
    return Recipe(
        statements=[f"{alter} {there}", *between, *dice.choice(([], [RUN])), f"{alter} DEFAULT", change, ROWS],
        names=[table.name, "identity", "key"],
    )  # fmt: skip


def key(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The primary key goes, rows come that it would not have taken, they go, and it is there again."""
    able = [one for one in tables if one.create[0].endswith("PRIMARY KEY (id))") and not one.leaves and not one.more]
    if not able:
        return table_name(dice, tables)
    table = dice.choice(able)
    drop = (
        f"DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE {table.path} DROP CONSTRAINT %I', conname) "
        f"FROM pg_constraint WHERE conrelid = '{table.path}'::regclass AND contype = 'p'); END $$"
    )
    twice = f"INSERT INTO {table.path} (id) VALUES (770001), (770001), (770002)"
    there = dice.choice(([drop], [drop, f"ALTER TABLE {table.path} REPLICA IDENTITY FULL"]))
    gone = f"DELETE FROM {table.path} WHERE id = 770001"
    full = len(there) == 2
    back = [
        f"ALTER TABLE {table.path} ADD PRIMARY KEY (id)",
        *([f"ALTER TABLE {table.path} REPLICA IDENTITY DEFAULT"] if full else []),
    ]
    between = [twice, gone] if full else [table.insert(dice, 3)]
    return Recipe(
        statements=[*there, *between, *dice.choice(([], [RUN])), *back, ROWS],
        names=[table.name, "key", "id", "identity"],
    )  # fmt: skip


def labels(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Labels of an enum, or attributes of a composite type, are others while rows are written."""
    table, name, kind = dice.choice(tables), f"n{dice.randrange(1000)}", f"back{dice.randrange(1000)}"
    table.columns.append(Column(name=name, type_name=kind))
    if dice.random() < 0.6:
        make, value = f"CREATE TYPE public.{kind} AS ENUM ('one', 'two')", "'one'"
        swap = [
            f"ALTER TYPE public.{kind} RENAME VALUE '{old}' TO '{new}'"
            for old, new in (("one", "x"), ("two", "one"), ("x", "two"))
        ]
        there, back, used = swap, swap, "'one'"
    else:
        make, value = f"CREATE TYPE public.{kind} AS (n integer, t text)", "'(1,x)'"
        there, used = [f"ALTER TYPE public.{kind} ADD ATTRIBUTE more integer CASCADE"], "'(2,y,3)'"
        back = [f"ALTER TYPE public.{kind} DROP ATTRIBUTE more CASCADE"]
    return Recipe(
        statements=[
            make, f"ALTER TABLE {table.path} ADD COLUMN {name} {kind}",
            f"UPDATE {table.path} SET {name} = {value} WHERE {table.some(dice)}", dice.choice((RUN, RUN, ROWS)),
            *there, f"UPDATE {table.path} SET {name} = {used} WHERE {table.some(dice)}", *back, ROWS,
        ],
        names=[table.name, name, kind], alone=True,
    )  # fmt: skip


def partition(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A partition is a table of its own for a while, gets and loses rows, and is a partition again."""
    table = next((one for one in tables if one.leaves and "BY RANGE" in one.create[0] and one.schema == "public"), None)
    if table is None or not any(f"PARTITION OF public.{table.name} FOR VALUES FROM (0)" in one for one in table.create):
        return truncate(dice, tables)
    leaf = f"public.{table.leaves[0]}"
    rows = [
        f"INSERT INTO {leaf} (id) VALUES (900), (901) ON CONFLICT DO NOTHING",
        f"DELETE FROM {leaf} WHERE id % 2 = 0",
    ]
    return Recipe(
        statements=[
            f"ALTER TABLE {table.path} DETACH PARTITION {leaf}", *dice.choice(([], rows[:1], rows)),
            *dice.choice(([], [RUN])),
            f"ALTER TABLE {table.path} ATTACH PARTITION {leaf} FOR VALUES FROM (0) TO (1000)", ROWS,
        ],
        names=[table.name, table.leaves[0]],
    )  # fmt: skip


def rolled_back(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """DDL in a savepoint that is rolled back, rows before and behind it: nothing comes of it."""
    table = dice.choice(tables)
    name = f"n{dice.randrange(1000)}"
    path = table.path
    renamed = table.insert(dice, 1).replace(path, f"{table.schema}.{name}", 1)
    undone = dice.choice(
        (
            f"ALTER TABLE {table.path} ADD COLUMN {name} integer DEFAULT 5; UPDATE {table.path} SET {name} = 6",
            f"ALTER TABLE {table.path} RENAME TO {name}; {renamed}",
            f"TRUNCATE {table.path}; {table.insert(dice, 2)}",
            f"ALTER TABLE {table.path} REPLICA IDENTITY FULL; {table.insert(dice, 2)}",
            f"DROP TABLE {path} CASCADE; CREATE TABLE {path} (id integer); INSERT INTO {path} VALUES (1)",
        )
    )  # fmt: skip
    before, behind = table.insert(dice, 1), table.insert(dice, 1)
    whole = f"BEGIN; {before}; SAVEPOINT s; {undone}; ROLLBACK TO SAVEPOINT s; {behind}; COMMIT"
    caught = (
        f"DO $$ BEGIN BEGIN {undone}; RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN NULL; END; {behind}; END $$"
    )
    return Recipe(statements=[BY_TOOL + dice.choice((whole, caught)), ROWS], names=[], alone=True)


ROUND_TRIPS: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "table's name and back": table_name, "tables swapped and back": tables_swapped,
    "column's name and back": column_name, "column's type and back": column_type, "column comes and goes": column_gone,
    "identity and back": identity, "key and back": key, "labels and back": labels,
    "partition and back": partition, "DDL rolled back": rolled_back,
}  # fmt: skip

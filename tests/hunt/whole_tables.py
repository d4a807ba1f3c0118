"""Events of whole tables: renamed, swapped, created again, attached, detached, published otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import ROWS, Recipe
from tests.hunt.tables import Table


def rename_table(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    table = dice.choice(tables)
    old, table.name = table.name, f"{table.name}_{dice.randrange(1000)}"
    return Recipe(statements=[f"ALTER TABLE {table.schema}.{old} RENAME TO {table.name}"], names=[old, table.name])


def archive(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The old rows under another name, an empty table under the old one."""
    table = dice.choice(tables)
    old = f"{table.name}_old{dice.randrange(1000)}"
    like = f"CREATE TABLE {table.path} (LIKE {table.schema}.{old} INCLUDING ALL)"
    statements = [f"ALTER TABLE {table.path} RENAME TO {old}", like, ROWS]
    return Recipe(statements=statements, names=[table.name, old])


def swap_tables(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    if len(tables) < 2:
        return rename_table(dice, tables)
    one, other = dice.sample(list(tables), 2)
    names = [one.name, other.name]
    one.name, other.name = other.name, one.name
    path = f"ALTER TABLE {one.schema}."
    return Recipe(
        statements=[
            f"{path}{names[0]} RENAME TO swapping",
            f"{path}{names[1]} RENAME TO {names[0]}",
            f"{path}swapping RENAME TO {names[1]}",
        ],
        names=names,
    )


def rename_schema(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Into one that the patterns name as well."""
    table = dice.choice(tables)
    table.schema = "moved"
    return Recipe(
        statements=["CREATE SCHEMA IF NOT EXISTS shop", f"ALTER TABLE public.{table.name} SET SCHEMA shop", ROWS,
                    "ALTER SCHEMA shop RENAME TO moved"],
        names=[table.name, "shop", "moved"],
    )  # fmt: skip


def move_out(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """To where the patterns do not look."""
    table = dice.choice(tables)
    table.schema = "elsewhere"
    # At the target the schema is made by whoever follows the hint: the pipeline's role may have no right in it.
    return Recipe(
        statements=["CREATE SCHEMA IF NOT EXISTS elsewhere", f"ALTER TABLE public.{table.name} SET SCHEMA elsewhere"],
        names=[table.name, "elsewhere"],
    )


def create_again(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    table = dice.choice(tables)
    copy = f"CREATE TABLE {table.schema}.again (LIKE {table.path} INCLUDING ALL)"
    statements = [
        copy,
        f"DROP TABLE {table.path} CASCADE",
        f"ALTER TABLE {table.schema}.again RENAME TO {table.name}",
        ROWS,
    ]
    return Recipe(statements=statements, names=[table.name, "again"])


def drop_table(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    table = dice.choice(tables)
    table.schema = "dropped"
    return Recipe(statements=[f"DROP TABLE public.{table.name} CASCADE"], names=[table.name])


def new_table(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    name = f"new{dice.randrange(1000)}"
    rows = [f"INSERT INTO public.{name} SELECT i, 'x' FROM generate_series(1, 5) i"]
    create = f"CREATE TABLE public.{name} (id integer PRIMARY KEY, v text)"
    return Recipe(statements=[create, *dice.choice(([], rows))], names=[name])


def enum_label(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """That the target's type lacks, unless it is told."""
    table = dice.choice(tables)
    column = dice.choice(table.plain() or table.columns).name
    return Recipe(
        statements=["ALTER TYPE mood ADD VALUE 'glad'", f"ALTER TABLE {table.path} ADD COLUMN feels mood",
                    f"UPDATE {table.path} SET feels = 'glad', {column} = {column}"],
        names=["mood", "feels", table.name], alone=True,
    )  # fmt: skip


def truncate(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    some = dice.sample(list(tables), dice.randint(1, len(tables)))
    return Recipe(statements=[f"TRUNCATE {', '.join(table.path for table in some)} RESTART IDENTITY CASCADE"])


def _parent(dice: random.Random, tables: Sequence[Table]) -> Table | None:
    return next((table for table in tables if table.leaves and "RANGE" in table.create[0]), None)


def attach(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The usual bulk load: filled aside, then attached. The default partition has to go first."""
    table = _parent(dice, tables)
    if table is None:
        return truncate(dice, tables)
    new = f"{table.name}_bulk"
    columns = ", ".join(column.name for column in table.columns)
    nulls = ", ".join("i" if column.name == "id" else f"NULL::{column.type_name}" for column in table.columns)
    rows = f"INSERT INTO public.{new} ({columns}) SELECT {nulls} FROM generate_series(500000, 500020) i"
    make = f"CREATE TABLE {{}}.{new} (LIKE {table.path} INCLUDING ALL)"
    where = "FOR VALUES FROM (500000) TO (600000)"
    schema = dice.choice(("public", "elsewhere"))
    return Recipe(
        statements=[
            "CREATE SCHEMA IF NOT EXISTS elsewhere",
            make.format(schema),
            rows.replace("public.", f"{schema}."),
            f"ALTER TABLE {table.path} ATTACH PARTITION {schema}.{new} {where}",
        ],
        names=[table.name, new],
    )


def pass_through(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A partition that comes, gets rows and goes again."""
    table = _parent(dice, tables)
    if table is None:
        return truncate(dice, tables)
    new = f"{table.name}_passing"
    columns = ", ".join(column.name for column in table.columns)
    nulls = ", ".join("i" if column.name == "id" else f"NULL::{column.type_name}" for column in table.columns)
    where = "FOR VALUES FROM (700000) TO (800000)"
    make = [f"CREATE TABLE public.{new} (LIKE {table.path} INCLUDING ALL)",
            f"ALTER TABLE {table.path} ATTACH PARTITION public.{new} {where}"]  # fmt: skip
    born = [f"CREATE TABLE public.{new} PARTITION OF {table.path} {where}"]
    rows = f"INSERT INTO {dice.choice((table.path, f'public.{new}'))} ({columns}) SELECT {nulls} "
    go = dice.choice(([f"ALTER TABLE {table.path} DETACH PARTITION public.{new}"], []))
    return Recipe(
        statements=[*dice.choice((make, born)), f"{rows} FROM generate_series(700000, 700009) i",
                    *dice.choice(([], [ROWS])), *go, f"DROP TABLE public.{new}"],
        names=[table.name, new],
    )  # fmt: skip


def detach(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    table = next((one for one in tables if one.leaves), None)
    if table is None:
        return truncate(dice, tables)
    leaf = table.leaves[0]
    after = dice.choice(([], [f"DROP TABLE public.{leaf}"], [f"INSERT INTO public.{leaf} (id) VALUES (77)"]))
    statements = [f"ALTER TABLE {table.path} DETACH PARTITION public.{leaf}", *after]
    return Recipe(statements=statements, names=[table.name, leaf])


def truncate_leaf(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    table = next((one for one in tables if one.leaves), None)
    if table is None:
        return truncate(dice, tables)
    what = dice.choice(("TRUNCATE", "DROP TABLE"))
    return Recipe(statements=[f"{what} public.{table.leaves[0]}"], names=[table.name, table.leaves[0]])


def publication(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Altered behind the pipeline's back."""
    table = dice.choice(tables)
    alter = "ALTER PUBLICATION parallel_apply_p"
    columns = ", ".join(column.name for column in table.columns[:-1])
    what = dice.choice(
        (
            [f"{alter} DROP TABLE {table.path}"],
            [f"{alter} DROP TABLE {table.path}", ROWS, f"{alter} ADD TABLE {table.path}"],
            [f"{alter} DROP TABLE {table.path}", f"{alter} ADD TABLE {table.path} WHERE (id % 2 = 0)"],
            [f"{alter} DROP TABLE {table.path}", f"{alter} ADD TABLE {table.path} ({columns})"],
            [f"{alter} SET (publish = 'insert')", ROWS, f"{alter} SET (publish = 'insert, update, delete, truncate')"],
            [f"{alter} SET (publish = 'insert, delete')"],
            [f"{alter} SET (publish_via_partition_root = {dice.choice(('true', 'false'))})"],
        )
    )
    return Recipe(statements=[*what, ROWS], names=[table.name, "publication"])


WHOLE_TABLES: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "table renamed": rename_table, "table archived": archive, "tables swapped": swap_tables,
    "schema renamed": rename_schema, "table moved out": move_out, "table created again": create_again,
    "table dropped": drop_table, "enum label added": enum_label, "table new": new_table, "truncate": truncate,
    "partition attached": attach, "partition passes through": pass_through,
    "partition detached": detach, "partition truncated": truncate_leaf, "publication altered": publication,
}  # fmt: skip

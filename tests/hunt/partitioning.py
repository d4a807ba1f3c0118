"""The changes that partition managers make, as pg_partman does, and ways to make a plain table a partitioned one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe
from tests.hunt.tables import Table
from tests.hunt.whole_tables import truncate

_LIKE: Final = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING INDEXES"


def sent(table: Table) -> str:
    """The columns that a copy of rows lists."""
    return ", ".join(column.name for column in table.columns if column.is_sent)


def _ranged(tables: Sequence[Table]) -> Table | None:
    return next((one for one in tables if one.leaves and "BY RANGE" in one.create[0] and one.schema == "public"), None)


def _has_default(table: Table) -> bool:
    return any(one.endswith("DEFAULT") for one in table.create)


def _rows(table: Table, path: str, first: int, last: int) -> str:
    return f"INSERT INTO {path} (id) SELECT i FROM generate_series({first}, {last}) i ON CONFLICT DO NOTHING"


def made_ahead(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Born as partitions, or made alike and attached; empty until rows come."""
    table = _ranged(tables)
    if table is None:
        return truncate(dice, tables)
    statements, names = [], [table.name]
    for number in dice.sample(range(2, 9), dice.choice((1, 3))):
        name, first = f"{table.name}_p{number}", number * 1000
        where = f"FOR VALUES FROM ({first}) TO ({first + 1000})"
        attached = [f"CREATE TABLE public.{name} (LIKE {table.path} {_LIKE})",
                    f"ALTER TABLE {table.path} ATTACH PARTITION public.{name} {where}"]  # fmt: skip
        made = dice.choice(([f"CREATE TABLE public.{name} PARTITION OF {table.path} {where}"], attached))
        path = dice.choice((table.path, f"public.{name}"))
        statements += [*made, *dice.choice(([], [_rows(table, path, first, first + 5)]))]
        names.append(name)
    return Recipe(statements=statements, names=names)


def default_emptied(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Move rows of the default partition into their own one: aside and in again, or while the default is detached."""
    table = _ranged(tables)
    if table is None or not _has_default(table):
        return made_ahead(dice, tables)
    default, new, columns = f"public.{table.name}_rest", f"public.{table.name}_p40", sent(table)
    fill = _rows(table, table.path, 40_000, 40_009)
    make = f"CREATE TABLE {new} PARTITION OF {table.path} FOR VALUES FROM (40000) TO (41000)"
    taken = f"DELETE FROM ONLY {default} WHERE id >= 40000 AND id < 41000 RETURNING {columns}"
    aside = (
        f"CREATE TEMP TABLE IF NOT EXISTS moving (LIKE {table.path}); TRUNCATE moving; "
        f"WITH taken AS ({taken}) INSERT INTO moving ({columns}) SELECT {columns} FROM taken; "
        f"{make}; INSERT INTO {table.path} ({columns}) SELECT {columns} FROM moving; DROP TABLE moving"
    )
    detached = (
        f"ALTER TABLE {table.path} DETACH PARTITION {default}; {make}; "
        f"WITH taken AS ({taken}) INSERT INTO {table.path} ({columns}) SELECT {columns} FROM taken; "
        f"ALTER TABLE {table.path} ATTACH PARTITION {default} DEFAULT"
    )
    return Recipe(
        statements=[fill, *dice.choice(([], [RUN])), BY_TOOL + dice.choice((aside, aside, detached)), ROWS],
        names=[table.name, f"{table.name}_p40", f"{table.name}_rest"],
        alone=True,
    )


def retention(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The oldest partition goes: detached, then dropped, kept, or moved to another schema, followed or not."""
    table = _ranged(tables)
    if table is None:
        return truncate(dice, tables)
    leaf = table.leaves[0]
    concurrently = not _has_default(table) and dice.random() < 0.7
    detach = f"ALTER TABLE {table.path} DETACH PARTITION public.{leaf}{' CONCURRENTLY' if concurrently else ''}"
    schema = dice.choice(("elsewhere", "moved"))
    after = dice.choice(
        (
            [f"DROP TABLE public.{leaf}"],
            [f"CREATE SCHEMA IF NOT EXISTS {schema}", f"ALTER TABLE public.{leaf} SET SCHEMA {schema}"],
            [ROWS],
        )
    )
    empty = dice.choice(([], [], [f"DELETE FROM public.{leaf}", *dice.choice(([], [RUN]))]))
    return Recipe(statements=[*empty, detach, *after, ROWS], names=[table.name, leaf], alone=concurrently)


def exchanged(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A partition's place is taken by a table that was loaded aside."""
    table = _ranged(tables)
    if table is None:
        return truncate(dice, tables)
    leaf, columns = f"public.{table.leaves[0]}", sent(table)
    new = f"{leaf}_new"
    load = [
        f"CREATE TABLE {new} (LIKE {table.path} {_LIKE})",
        f"INSERT INTO {new} ({columns}) SELECT {columns} FROM {leaf} WHERE id % 2 = 0",
        f"ALTER TABLE {new} ADD CONSTRAINT bounds CHECK (id >= 0 AND id < 1000)",
    ]
    swap = [
        f"ALTER TABLE {table.path} DETACH PARTITION {leaf}",
        f"ALTER TABLE {table.path} ATTACH PARTITION {new} FOR VALUES FROM (0) TO (1000)",
        f"DROP TABLE {leaf}",
        f"ALTER TABLE {new} RENAME TO {table.leaves[0]}",
    ]
    statements = [*load, *(["; ".join(swap)] if dice.random() < 0.6 else swap), ROWS]
    return Recipe(statements=statements, names=[table.name, table.leaves[0], f"{table.leaves[0]}_new"])


def _plain(tables: Sequence[Table]) -> list[Table]:
    return [
        one for one in tables
        if one.key and not one.leaves and not one.more and one.schema == "public" and one.column("id").is_sent
        and one.create[0].endswith("PRIMARY KEY (id))")
    ]  # fmt: skip


def converted(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The old table becomes a partition of the new one that bears its name: no row is copied."""
    able = _plain(tables)
    if not able:
        return truncate(dice, tables)
    table = dice.choice(able)
    old = f"{table.name}_old{dice.randrange(1000)}"
    where = dice.choice(("DEFAULT", "FOR VALUES FROM (MINVALUE) TO (1000000)"))
    parts = [
        f"ALTER TABLE {table.path} RENAME TO {old}",
        f"CREATE TABLE {table.path} (LIKE public.{old} {_LIKE}) PARTITION BY RANGE (id)",
        f"ALTER TABLE {table.path} ATTACH PARTITION public.{old} {where}",
        f"CREATE TABLE public.{old}_next PARTITION OF {table.path} FOR VALUES FROM (2000000) TO (3000000)",
    ]
    table.leaves = [old]
    together = dice.random() < 0.7
    statements = ["; ".join(parts), ROWS] if together else [*parts[:3], ROWS, parts[3]]
    return Recipe(statements=statements, names=[table.name, old, f"{old}_next"])


def copied(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Rows go in batches to a partitioned table beside, kept equal by a trigger, until names are swapped."""
    able = _plain(tables)
    if not able:
        return truncate(dice, tables)
    table = dice.choice(able)
    columns, number = sent(table), dice.randrange(1000)
    new, old = f"{table.name}_new{number}", f"{table.name}_old{number}"
    body = (
        f"BEGIN IF TG_OP <> 'INSERT' THEN DELETE FROM public.{new} WHERE id = OLD.id; END IF; "
        f"IF TG_OP <> 'DELETE' THEN INSERT INTO public.{new} ({columns}) "
        f"VALUES ({', '.join(f'NEW.{one}' for one in columns.split(', '))}) ON CONFLICT DO NOTHING; END IF; "
        "RETURN NULL; END"
    )
    insert = f"INSERT INTO public.{new} ({columns}) SELECT {columns} FROM {table.path}"
    batch = f"{insert} WHERE id % 2 = {{}} ON CONFLICT DO NOTHING"
    leaf = f"CREATE TABLE public.{new}_{{0}} PARTITION OF public.{new} FOR VALUES WITH (MODULUS 2, REMAINDER {{0}})"
    swap = f"ALTER TABLE {table.path} RENAME TO {old}; ALTER TABLE public.{new} RENAME TO {table.name}"
    statements = [
        f"CREATE TABLE public.{new} (LIKE {table.path} {_LIKE}) PARTITION BY HASH (id)",
        leaf.format(0), leaf.format(1),
        f"{BY_TOOL}CREATE FUNCTION public.keep_{new}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
        f"{BY_TOOL}CREATE TRIGGER keep_both AFTER INSERT OR UPDATE OR DELETE ON {table.path} FOR EACH ROW "
        f"EXECUTE FUNCTION public.keep_{new}()",
        batch.format(0), ROWS, *dice.choice(([], [RUN])), batch.format(1), batch.format("-1 OR true"), ROWS,
        f"{BY_TOOL}DROP TRIGGER keep_both ON {table.path}",
        swap,
        ROWS,
        *dice.choice(([], [f"DROP TABLE public.{old}"])),
    ]  # fmt: skip
    table.leaves = [f"{new}_0", f"{new}_1"]
    return Recipe(statements=statements, names=[table.name, new, old, f"{new}_0", f"{new}_1"])


PARTITIONING: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "partitions made ahead": made_ahead, "default partition emptied": default_emptied, "retention": retention,
    "partition exchanged": exchanged, "converted to partitioned": converted, "copied into partitioned": copied,
}  # fmt: skip
NEED_RANGES: Final = (
    "partitions made ahead",
    "default partition emptied",
    "retention",
    "partition exchanged",
    "unlogged",
)
"""Kinds that say little without a table that is partitioned by ranges."""

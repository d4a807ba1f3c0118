"""Migrations beside the live table: shadow tables and columns, kept equal by triggers until names are swapped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe, add_nullable
from tests.hunt.partitioning import sent
from tests.hunt.tables import Column, Table
from tests.hunt.whole_tables import archive


def _able(tables: Sequence[Table]) -> list[Table]:
    return [one for one in tables if one.key and not one.leaves and not one.more and one.column("id").is_sent]


def shadow_table(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """As gh-ost and pg-osc do it: a copy with the new definition, an audit of what is written, exchanged names."""
    able = _able(tables)
    if not able:
        return archive(dice, tables)
    table = dice.choice(able)
    columns, number = sent(table), dice.randrange(1000)
    new, old, added = f"{table.name}_gho{number}", f"{table.name}_del{number}", f"n{number}"
    change = dice.choice(
        (
            f"ADD COLUMN {added} integer DEFAULT 5",
            "ALTER COLUMN id TYPE bigint",
            f"ADD COLUMN {added} text",
            "SET (fillfactor = 70)",
        )
    )
    listed = ", ".join(f"NEW.{one}" for one in columns.split(", "))
    body = (
        f"BEGIN IF TG_OP <> 'INSERT' THEN DELETE FROM {table.schema}.{new} WHERE id = OLD.id; END IF; "
        f"IF TG_OP <> 'DELETE' THEN INSERT INTO {table.schema}.{new} ({columns}) OVERRIDING SYSTEM VALUE "
        f"VALUES ({listed}) ON CONFLICT DO NOTHING; END IF; RETURN NULL; END"
    )
    batch = (
        f"INSERT INTO {table.schema}.{new} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {table.path} "
        "WHERE {} ON CONFLICT DO NOTHING"
    )
    identity = [f"ALTER TABLE {table.schema}.{new} REPLICA IDENTITY FULL"] if "PRIMARY" not in table.create[0] else []
    swap = f"ALTER TABLE {table.path} RENAME TO {old}; ALTER TABLE {table.schema}.{new} RENAME TO {table.name}"
    gone = dice.choice(
        ([f"DROP TABLE {table.schema}.{old} CASCADE"], [ROWS, f"DROP TABLE {table.schema}.{old} CASCADE"], [])
    )
    statements = [
        f"CREATE TABLE {table.schema}.{new} (LIKE {table.path} INCLUDING ALL)", *identity,
        f"ALTER TABLE {table.schema}.{new} {change}",
        f"{BY_TOOL}CREATE FUNCTION public.audit_{new}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
        f"{BY_TOOL}CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON {table.path} FOR EACH ROW "
        f"EXECUTE FUNCTION public.audit_{new}()",
        batch.format("id % 2 = 0"), ROWS, *dice.choice(([], [RUN])), batch.format("true"), ROWS,
        f"{BY_TOOL}DROP TRIGGER audit ON {table.path}",
        *([swap] if dice.random() < 0.7 else swap.split("; ")), *gone, ROWS,
    ]  # fmt: skip
    if "bigint" in change:
        table.column("id").type_name = "bigint"
    elif "ADD" in change:
        table.columns.append(Column(name=added, type_name="integer" if "integer" in change else "text"))
    return Recipe(statements=statements, names=[table.name, new, old, added, "id", "key"])


def shadow_column(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Expand and contract: a new column that a trigger keeps, a backfill in batches, exchanged names, a drop."""
    able = [one for one in _able(tables) if one.plain()]
    if not able:
        return archive(dice, tables)
    table, number = dice.choice(able), dice.randrange(1000)
    column = dice.choice(table.plain())
    new, old, name = f"n{number}", f"o{number}", column.name
    body = f"BEGIN NEW.{new} := NEW.{name}::text; RETURN NEW; END"
    fill = f"UPDATE {table.path} SET {new} = {name}::text WHERE id % 2 = {{}} AND {new} IS NULL"
    swap = [
        f"ALTER TABLE {table.path} RENAME COLUMN {name} TO {old}",
        f"ALTER TABLE {table.path} RENAME COLUMN {new} TO {name}",
    ]
    drop = f"ALTER TABLE {table.path} DROP COLUMN {old}"
    statements = [
        f"ALTER TABLE {table.path} ADD COLUMN {new} text",
        f"{BY_TOOL}CREATE OR REPLACE FUNCTION public.keep_{new}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$",
        f"{BY_TOOL}CREATE TRIGGER keep_{new} BEFORE INSERT OR UPDATE ON {table.path} FOR EACH ROW "
        f"EXECUTE FUNCTION public.keep_{new}()",
        fill.format(0), ROWS, *dice.choice(([], [RUN])), fill.format(1), ROWS,
        f"{BY_TOOL}DROP TRIGGER keep_{new} ON {table.path}",
        *dice.choice((["; ".join([*swap, drop])], ["; ".join(swap), ROWS, drop], [*swap, drop])),
        ROWS,
    ]  # fmt: skip
    column.type_name = "text"
    return Recipe(statements=statements, names=[name, new, old, table.name])


def bigint_key(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """An integer key that runs out: a bigint beside it, kept by a trigger, its index built aside, names exchanged."""
    able = [one for one in _able(tables) if one.create[0].endswith("PRIMARY KEY (id))")]
    if not able:
        return add_nullable(dice, dice.choice(tables))
    table = dice.choice(able)
    path, index = table.path, f"{table.name}_big{dice.randrange(1000)}"
    drop = (
        f"DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE {path} DROP CONSTRAINT %I CASCADE', conname) "
        f"FROM pg_constraint WHERE conrelid = '{path}'::regclass AND contype = 'p'); END $$"
    )
    swap = [
        f"DROP TRIGGER IF EXISTS keep_big ON {path}", drop,
        f"ALTER TABLE {path} ALTER COLUMN id DROP IDENTITY IF EXISTS",
        f"ALTER TABLE {path} RENAME COLUMN id TO id_old", f"ALTER TABLE {path} RENAME COLUMN id_big TO id",
        f"ALTER TABLE {path} ADD CONSTRAINT {index} PRIMARY KEY USING INDEX {index}",
        f"ALTER TABLE {path} ALTER COLUMN id_old DROP NOT NULL",
    ]  # fmt: skip
    last = f"ALTER TABLE {path} DROP COLUMN id_old CASCADE"
    statements = [
        f"ALTER TABLE {path} ADD COLUMN id_big bigint{dice.choice(('', ' NOT NULL DEFAULT 0'))}",
        f"{BY_TOOL}CREATE OR REPLACE FUNCTION public.keep_big() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN NEW.id_big := NEW.id; RETURN NEW; END$$",
        f"{BY_TOOL}CREATE TRIGGER keep_big BEFORE INSERT OR UPDATE ON {path} FOR EACH ROW "
        "EXECUTE FUNCTION public.keep_big()",
        ROWS,
        *(f"UPDATE {path} SET id_big = id WHERE id % 2 = {half}" for half in ("0", "1 OR id_big IS NULL")),
        *dice.choice(([], [RUN])),
        f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON {path} (id_big)",
        f"ALTER TABLE {path} ADD CONSTRAINT big CHECK (id_big IS NOT NULL) NOT VALID; "
        f"ALTER TABLE {path} VALIDATE CONSTRAINT big; ALTER TABLE {path} ALTER COLUMN id_big SET NOT NULL",
        ROWS,
        *dice.choice((["; ".join([*swap, last])], ["; ".join(swap), ROWS, last])),
        ROWS,
    ]  # fmt: skip
    table.column("id").type_name = "bigint"
    return Recipe(statements=statements, names=["id", "id_big", "id_old", "key", table.name], alone=True)


def archived_schema(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The table goes to an archive, followed or not, and an empty one takes its name."""
    able = _able(tables)
    if not able:
        return archive(dice, tables)
    table, schema = dice.choice(able), dice.choice(("elsewhere", "moved"))
    go = [
        f"ALTER TABLE {table.path} SET SCHEMA {schema}",
        f"CREATE TABLE {table.path} (LIKE {schema}.{table.name} INCLUDING ALL)",
    ]
    back = dice.choice(
        ([], [], [f"INSERT INTO {table.path} ({sent(table)}) OVERRIDING SYSTEM VALUE SELECT {sent(table)} "
                  f"FROM {schema}.{table.name} ON CONFLICT DO NOTHING"])
    )  # fmt: skip
    drop = dice.choice(([], [], [f"DROP TABLE {schema}.{table.name} CASCADE"]))
    statements = [
        f"CREATE SCHEMA IF NOT EXISTS {schema}", *(["; ".join(go)] if dice.random() < 0.6 else go), *back, ROWS, *drop,
    ]  # fmt: skip
    return Recipe(statements=statements, names=[table.name, schema])


def inheritance(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Children come and go; what is altered at the parent ONLY stays below, as the parent's own or not."""
    table = dice.choice(tables)
    if table.leaves:
        return add_nullable(dice, table)
    child, number = f"{table.name}_kid{dice.randrange(1000)}", dice.randrange(1000)
    make = [
        f"CREATE TABLE {table.schema}.{child} (LIKE {table.path} INCLUDING ALL)",
        f"ALTER TABLE {table.schema}.{child} INHERIT {table.path}",
    ]
    born = [f"CREATE TABLE {table.schema}.{child} (extra{number} text) INHERITS ({table.path})"]
    columns = sent(table)
    insert = f"INSERT INTO {table.schema}.{child} ({columns})"
    rows = f"{insert} SELECT {columns} FROM ONLY {table.path} ON CONFLICT DO NOTHING"
    statements = [*dice.choice((make, make, born)), rows, *dice.choice(([], [RUN]))]
    names = [table.name, child]
    plain = table.plain()
    if plain and dice.random() < 0.5:
        column = dice.choice(plain)
        table.columns.remove(column)
        statements += [f"ALTER TABLE ONLY {table.path} DROP COLUMN {column.name}", ROWS]
        names.append(column.name)
    statements += dice.choice(
        ([f"ALTER TABLE {table.schema}.{child} NO INHERIT {table.path}", ROWS],
         [f"ALTER TABLE {table.schema}.{child} NO INHERIT {table.path}", f"DROP TABLE {table.schema}.{child}"],
         [f"TRUNCATE ONLY {table.path}", ROWS], [f"DELETE FROM {table.path} WHERE ctid = '(0,1)'"])
    )  # fmt: skip
    return Recipe(statements=statements, names=names)


SHADOWS: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "shadow table": shadow_table, "shadow column": shadow_column, "bigint key by trigger": bigint_key,
    "archived to schema": archived_schema, "inheritance": inheritance,
}  # fmt: skip

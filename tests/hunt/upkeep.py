"""Upkeep of a live database: storage, statistics, tablespaces, comments, indexes, views. Nothing must come of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe
from tests.hunt.tables import Table


def attributes(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Change what a column's or a table's entry in the catalog keeps beside its definition."""
    table = dice.choice(tables)
    column, number = dice.choice(table.columns).name, dice.randrange(1000)
    alter = f"ALTER TABLE {table.path}"
    some = dice.sample(
        (
            f"{alter} ALTER COLUMN {column} SET STORAGE {dice.choice(('EXTERNAL', 'MAIN', 'EXTENDED', 'PLAIN'))}",
            f"{alter} ALTER COLUMN {column} SET COMPRESSION {dice.choice(('pglz', 'lz4'))}",
            f"{alter} ALTER COLUMN {column} SET STATISTICS {number}",
            f"{alter} ALTER COLUMN {column} SET (n_distinct = 5)",
            f"{alter} ALTER COLUMN {column} SET DEFAULT NULL",
            f"{alter} SET (autovacuum_enabled = false, toast_tuple_target = 128)",
            f"COMMENT ON COLUMN {table.path}.{column} IS 'said {number}'",
            f"COMMENT ON TABLE {table.path} IS 'said {number}'",
            f"GRANT SELECT, INSERT ({column}) ON {table.path} TO PUBLIC",
            f"CREATE STATISTICS public.s{number} ON {column}, ({column} IS NULL) FROM {table.path}",
            f"{alter} SET ACCESS METHOD heap",
            f"{alter} ENABLE ROW LEVEL SECURITY; {alter} DISABLE ROW LEVEL SECURITY",
        ),
        3,
    )
    first, *rest = (f"{BY_TOOL}{one}" for one in some)
    return Recipe(statements=[first, ROWS, *rest, ROWS])


def indexes(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Made, built anew and renamed beside writers."""
    table = dice.choice(tables)
    column, index = dice.choice(table.columns).name, f"{table.name}_x{dice.randrange(1000)}"
    rename = (
        f"DO $$ BEGIN EXECUTE (SELECT format('ALTER INDEX {table.schema}.%I RENAME TO {index}_key', relname) "
        f"FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = '{table.path}'::regclass "
        "AND indisunique LIMIT 1); END $$"
    )
    statements = [
        f"CREATE INDEX CONCURRENTLY {index} ON {table.path} (({column} IS NULL))",
        f"REINDEX TABLE CONCURRENTLY {table.path}",
        f"ALTER TABLE {table.path} CLUSTER ON {index}; CLUSTER {table.path}",
        rename,
        f"DROP INDEX CONCURRENTLY {table.schema}.{index}",
    ]
    kept = [one for one in statements[1:4] if dice.random() < 0.7]
    return Recipe(
        statements=[f"{BY_TOOL}{statements[0]}", ROWS, *(f"{BY_TOOL}{one}" for one in kept), ROWS,
                    f"{BY_TOOL}{statements[4]}", ROWS],
        alone=True,
    )  # fmt: skip


def moved_files(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """To another tablespace and back: a new file, and the same rows in it."""
    table = dice.choice(tables)
    path = f"public.{dice.choice(table.leaves)}" if table.leaves else table.path
    move = f"ALTER TABLE {path} SET TABLESPACE"
    back = dice.choice(([], [f"{BY_TOOL}{move} pg_default", ROWS]))
    storage = f"{BY_TOOL}ALTER TABLE {path} SET (fillfactor = {dice.randrange(40, 90)})"
    return Recipe(
        statements=[
            f"{BY_TOOL}CREATE TABLESPACE hunted LOCATION ''", ROWS, *dice.choice(([], [storage])),
            f"{BY_TOOL}{move} hunted", ROWS, *dice.choice(([], [RUN])), *back,
        ],
        alone=True, superuser=True,
    )  # fmt: skip


def dependents(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Views, rules, temporary and unlogged tables, large objects: of what nobody follows."""
    table, number = dice.choice(tables), dice.randrange(1000)
    column = dice.choice(table.columns).name
    some = dice.sample(
        (
            f"CREATE VIEW public.v{number} AS SELECT * FROM {table.path}",
            f"CREATE MATERIALIZED VIEW public.m{number} AS SELECT * FROM {table.path}; "
            f"REFRESH MATERIALIZED VIEW public.m{number}",
            f"CREATE RULE told AS ON INSERT TO {table.path} DO ALSO NOTIFY told",
            f"CREATE UNLOGGED TABLE public.u{number} AS SELECT {column} FROM {table.path}; DROP TABLE public.u{number}",
            f"CREATE TEMP TABLE passing AS TABLE {table.path}; TRUNCATE passing; DROP TABLE passing",
            "SELECT lo_unlink(lo_from_bytea(0, 'x'))",
            f"CREATE TABLE public.tmp{number} (LIKE {table.path} INCLUDING ALL); DROP TABLE public.tmp{number}",
            f"CREATE TABLE public.tmp{number} AS TABLE {table.path}; DROP TABLE public.tmp{number}",
            f"LOCK TABLE {table.path} IN ACCESS EXCLUSIVE MODE",
        ),
        3,
    )
    return Recipe(statements=[*(f"{BY_TOOL}{one}" for one in some), ROWS], alone=True)


UPKEEP: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "attributes kept": attributes, "indexes kept": indexes, "files moved": moved_files, "dependents": dependents,
}  # fmt: skip

"""Tables and indexes made anew in place: as pg_repack and pg_squeeze do it, CLUSTER, UNLOGGED, replaced indexes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe
from tests.hunt.tables import Table

_SWAP_FILES: Final = """
SET allow_system_table_mods = on;
DO $repack$
DECLARE
    kept oid := '{path}'::regclass;
    made oid;
    files text := 'relfilenode, reltablespace, reltoastrelid, relfrozenxid, relminmxid';
BEGIN
    LOCK TABLE {path} IN ACCESS EXCLUSIVE MODE;
    DROP TABLE IF EXISTS repack.table_{name};
    EXECUTE (
        SELECT format('CREATE TABLE repack.table_{name} AS SELECT %s FROM ONLY {path}{order}', string_agg(
            CASE WHEN attisdropped THEN format('NULL::integer AS %I', attname) ELSE quote_ident(attname) END,
            ', ' ORDER BY attnum))
        FROM pg_attribute WHERE attrelid = kept AND attnum > 0
    );
    made := 'repack.table_{name}'::regclass;
    UPDATE pg_depend d SET refobjid = CASE d.refobjid WHEN kept THEN made ELSE kept END
    FROM pg_class c
    WHERE c.oid IN (kept, made) AND d.classid = 'pg_class'::regclass AND d.objid = c.reltoastrelid
        AND d.refobjid = c.oid;
    UPDATE pg_class one SET (relfilenode, reltablespace, reltoastrelid, relfrozenxid, relminmxid) = (
        SELECT other.relfilenode, other.reltablespace, other.reltoastrelid, other.relfrozenxid, other.relminmxid
        FROM pg_class other WHERE other.oid IN (kept, made) AND other.oid <> one.oid)
    WHERE one.oid IN (kept, made);
END
$repack$;
REINDEX TABLE {path}
"""
"""Both tables get the other one's file, with its TOAST table, and the indexes follow."""


def repack(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """A log by triggers, a shadow that is filled, and files that are swapped; pg_squeeze does without the triggers."""
    table = dice.choice(tables)
    path, name = (table.path, table.name) if not table.leaves else (f"public.{table.leaves[0]}", table.leaves[0])
    function = (
        "CREATE OR REPLACE FUNCTION repack.noted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS "
        f"$$BEGIN INSERT INTO repack.log_{name} (row) VALUES (NEW); RETURN NULL; END$$"
    )
    triggers = [
        f"{BY_TOOL}CREATE TABLE repack.log_{name} (id bigserial PRIMARY KEY, row {path})",
        f"{BY_TOOL}{function}",
        f"{BY_TOOL}CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON {path} FOR EACH ROW "
        "EXECUTE FUNCTION repack.noted()",
        f"{BY_TOOL}ALTER TABLE {path} ENABLE ALWAYS TRIGGER repack_trigger",
        f"{BY_TOOL}CREATE TABLE repack.table_{name} AS SELECT * FROM ONLY {path}",
    ]
    cleaned = [f"{BY_TOOL}DROP TABLE repack.log_{name} CASCADE", f"{BY_TOOL}DROP TRIGGER repack_trigger ON {path}"]
    with_triggers = dice.random() < 0.6
    order = f" ORDER BY {table.key} DESC" if table.key and dice.random() < 0.5 else ""
    return Recipe(
        statements=[
            f"{BY_TOOL}CREATE SCHEMA IF NOT EXISTS repack",
            *(triggers if with_triggers else []),
            *dice.choice(([ROWS], [ROWS, RUN, ROWS])),
            BY_TOOL + _SWAP_FILES.format(path=path, name=name, order=order).strip(),
            ROWS,
            *(cleaned if with_triggers else []),
            f"{BY_TOOL}DROP TABLE repack.table_{name}",
        ],
        names=[],
        alone=True,
        superuser=True,
    )


def cluster(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """In the order of some index, or by the other commands that write a table anew."""
    table = dice.choice(tables)
    clustered = (
        f"DO $$ BEGIN EXECUTE (SELECT 'CLUSTER {table.path} USING ' || quote_ident(relname) FROM pg_index "
        f"JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = '{table.path}'::regclass LIMIT 1); END $$"
    )
    what = dice.choice(
        (clustered, f"VACUUM (FULL, FREEZE, ANALYZE) {table.path}", f"ALTER TABLE {table.path} SET (fillfactor = 50)",
         f"VACUUM (FREEZE) {table.path}", f"REINDEX TABLE {table.path}")
    )  # fmt: skip
    return Recipe(statements=[f"{BY_TOOL}{what}", ROWS], alone=True)


def unlogged(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Loaded without WAL, as the documentation of a bulk load says: what is in the publication refuses."""
    table = dice.choice(tables)
    path = f"public.{dice.choice(table.leaves)}" if table.leaves else table.path
    back = dice.choice(([], [f"ALTER TABLE {path} SET LOGGED", ROWS]))
    return Recipe(
        statements=[f"ALTER TABLE {path} SET UNLOGGED", ROWS, *dice.choice(([], [RUN, ROWS])), *back],
        names=[table.name, path.partition(".")[2]],
    )


def identity_replaced(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The index that says which row it is: another one, or itself built anew while rows are written."""
    able = [table for table in tables if table.key and not table.leaves and table.takes_changes]
    if not able:
        return cluster(dice, tables)
    table = dice.choice(able)
    index = f"{table.name}_ri{dice.randrange(1000)}"
    use = f"ALTER TABLE {table.path} REPLICA IDENTITY USING INDEX {index}"
    make = f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON {table.path} ({table.key})"
    anew = f"REINDEX INDEX CONCURRENTLY {table.schema}.{index}"
    second = [
        f"CREATE UNIQUE INDEX CONCURRENTLY {index}_2 ON {table.path} ({table.key})",
        f"ALTER TABLE {table.path} REPLICA IDENTITY USING INDEX {index}_2",
        f"DROP INDEX CONCURRENTLY {table.schema}.{index}",
        f"ALTER INDEX {table.schema}.{index}_2 RENAME TO {index}",
    ]
    after = dice.choice(
        ([anew, ROWS], [*second[:2], ROWS, *second[2:], ROWS], [f"REINDEX TABLE CONCURRENTLY {table.path}"])
    )
    return Recipe(statements=[make, use, ROWS, *after], names=[table.name, index, "identity"], alone=True)


def key_by_index(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """The primary key's index replaced by one that was built beside it."""
    able = [table for table in tables if table.key and not table.leaves and not table.more]
    if not able:
        return cluster(dice, tables)
    table = dice.choice(able)
    index = f"{table.name}_pk{dice.randrange(1000)}"
    columns = "id, k" if any(column.name == "k" for column in table.columns) else "id"
    drop = (
        f"DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE {table.path} DROP CONSTRAINT %I', conname) "
        f"FROM pg_constraint WHERE conrelid = '{table.path}'::regclass AND contype = 'p'); "
        "EXCEPTION WHEN null_value_not_allowed THEN NULL; END $$"
    )
    swap = f"{drop}; ALTER TABLE {table.path} ADD CONSTRAINT {index} PRIMARY KEY USING INDEX {index}"
    parts = dice.choice(
        ([swap], [drop, ROWS, swap.partition("; ALTER")[0] and f"ALTER{swap.rpartition('; ALTER')[2]}"])
    )
    return Recipe(
        statements=[f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON {table.path} ({columns})", ROWS, *parts, ROWS],
        names=[table.name, index, "key"],
        alone=True,
    )


REBUILDS: Final[dict[str, Callable[[random.Random, Sequence[Table]], Recipe]]] = {
    "pg_repack": repack, "clustered": cluster, "unlogged": unlogged, "identity's index replaced": identity_replaced,
    "key by index": key_by_index,
}  # fmt: skip

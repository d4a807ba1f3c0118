"""Sessions that migrate: with settings of their own, in blocks that catch errors, and with commits that wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from psycopg.sql import Literal

from tests.hunt.migrations import RECIPES, ROWS, Recipe
from tests.hunt.step import Step
from tests.hunt.tables import Column, Table

_SETTINGS: Final = (
    ("extra_float_digits = 0", "double precision", "0.12345678901234568"),
    ("extra_float_digits = -3", "real", "0.123456789"),
    ("bytea_output = 'escape'", "bytea", "'\\x00ff41'"),
    ("datestyle = 'SQL, DMY'", "date", "'10/12/2011'"),
    ("datestyle = 'German'", "timestamptz", "'2011-12-10 01:02+05'"),
    ("timezone = 'Asia/Kolkata'", "timestamptz", "'2011-12-10 01:02'"),
    ("intervalstyle = 'sql_standard'", "interval", "'-1-2 +3 -4:05'"),
    ("array_nulls = off", "text[]", "'{NULL,a}'"),
    ("transform_null_equals = on", "boolean", "NULL = NULL"),
    ("quote_all_identifiers = on", "small", "3"),
    ("session_replication_role = 'replica'", "integer", "7"),
    ("search_path = 'pg_catalog'", "text", "'x'"),
    ("standard_conforming_strings = off", "text", "'a\\\\b'"),
)
"""A setting, and a type and a default whose meaning or print hangs on it."""


def settings(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A column comes, or becomes text, in a session with another setting, and later nothing tells its default."""
    table, name = dice.choice(tables), f"n{dice.randrange(1000)}"
    setting, kind, value = dice.choice(_SETTINGS)
    alter = f"ALTER TABLE {table.path}"
    drop, rewrite = f"{alter} ALTER COLUMN {name} DROP DEFAULT", f"VACUUM FULL {table.path}"
    retype = f"{alter} ALTER COLUMN {name} TYPE text USING {name}::text || '!'"
    then = dice.choice(([], [ROWS], [drop, ROWS], [drop, ROWS, rewrite], [ROWS, retype], [retype, ROWS]))
    table.columns.append(Column(name=name, type_name="text" if retype in then else kind))
    return [
        Recipe(
            statements=[f"{alter} ADD COLUMN {name} {kind} DEFAULT {value}", *then], names=[table.name, name],
            alone=rewrite in then, superuser="replication" in setting,
            form=lambda statements: f"SET LOCAL {setting}; {'; '.join(statements)}",
        )
    ]  # fmt: skip


def in_blocks(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A migration whose statements are transactions within others: blocks that catch errors, released savepoints."""
    able = [table for table in tables if len(table.plain()) >= 2]
    if not able:
        return settings(dice, tables)
    table = dice.choice(able)
    recipe = RECIPES[dice.choice(sorted(RECIPES))](dice, table)
    is_block = dice.random() < 0.6
    names = [name for name in recipe.names if name] and [*recipe.names, table.name]
    form = _in_block if is_block else _behind_savepoints
    return [replace(recipe, names=names, form=form, alone=recipe.alone or not is_block)]


def _in_block(statements: Sequence[str]) -> str:
    run = "; ".join(f"EXECUTE {Literal(one).as_string()}" for one in statements)
    return f"DO $block$ BEGIN BEGIN {run}; EXCEPTION WHEN division_by_zero THEN NULL; END; END $block$"


def _behind_savepoints(statements: Sequence[str]) -> str:
    return f"BEGIN; SAVEPOINT one; SAVEPOINT two; {'; '.join(statements)}; RELEASE one; COMMIT"


def unconfirmed(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A commit that waits for its synchronous standby while a run goes by."""
    table, name = dice.choice(tables), f"n{dice.randrange(1000)}"
    column = dice.choice(table.plain() or table.columns)
    row, alter = table.insert(dice, 2), f"ALTER TABLE {table.path}"
    change = dice.choice(
        (
            f"{alter} ADD COLUMN {name} integer DEFAULT 7",
            f"{alter} ADD COLUMN {name} uuid DEFAULT gen_random_uuid()",
            f"{alter} ALTER COLUMN {column.name} TYPE {column.type_name} USING NULL",
            f"{alter} RENAME TO {table.name}_{name}",
            f"TRUNCATE {table.path}",
            "",
        )
    )
    if "ADD" in change:
        table.columns.append(Column(name=name, type_name="integer" if "integer" in change else "uuid"))
    if "RENAME" in change:
        table.name = f"{table.name}_{name}"
    waiting = Step(
        do="unconfirmed",
        sql=("SET LOCAL synchronous_commit = on", change or row, row),
        kind="commit unconfirmed",
        names=(table.name, name, column.name) if "ALTER" in change else (),
        by_hand=(change,) if "ALTER" in change else (),
    )
    return [Step(do="run"), Step(do="source", sql=(table.change(dice),)), waiting]


SESSIONS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "settings of a migration": settings, "migration in blocks": in_blocks, "commit unconfirmed": unconfirmed,
}  # fmt: skip

"""Rights that somebody takes from the source's role, and tables that it does not own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from tests.hunt.migrations import Recipe
from tests.hunt.step import Step
from tests.hunt.tables import Table

NEED_READER: Final = ("source rights taken",)
"""Kinds that say nothing of a superuser."""
_WORDS: Final = (
    "permission denied",
    "privilege",
    "owner",
    "may not",
    "no right",
    "REPLICATION",
    "not own",
    "the right",
)
_EMIT: Final = "FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text, boolean)"


def source_rights(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """One right, or an owner, and what needs it: rows, an alteration, a new table, a copy."""
    table, number = dice.choice(tables), dice.randrange(1000)
    kind, superuser = "source rights taken", {"superuser": True}
    take = dice.choice(
        (
            "ALTER ROLE reader NOREPLICATION",
            f"REVOKE SELECT ON {table.path} FROM reader",
            f"ALTER TABLE {table.path} OWNER TO postgres",
            "ALTER PUBLICATION parallel_apply_p OWNER TO postgres",
            "REVOKE CREATE ON DATABASE hunt FROM reader",
            f"REVOKE EXECUTE ON {_EMIT} FROM public",
            "REVOKE CREATE ON SCHEMA public FROM reader",
            f"ALTER TABLE {table.path} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        )
    )
    new = (f"CREATE TABLE public.new{number} (id integer PRIMARY KEY)", f"INSERT INTO public.new{number} VALUES (1)")
    add = (f"ALTER TABLE {table.path} ADD COLUMN n{number} integer",)
    then = dice.choice(
        (
            [],
            [Step(do="source", sql=new, kind=kind, names=(f"new{number}",), options=superuser)],
            [Step(do="source", sql=add, kind=kind, names=(table.name, f"n{number}"), by_hand=add, options=superuser)],
            [Step(do="recopy", options={"tables": [table.path]}, kind="tables recopied")],
        )
    )
    rows = Step(do="source", sql=tuple(one.change(dice) for one in tables), options=superuser)
    return [
        Step(do="source", sql=(take,), kind=kind, names=(table.name, "publication", *_WORDS), options=superuser),
        rows, *then, *dice.choice(([], [rows])),
    ]  # fmt: skip

"""Targets that write by themselves, and targets whose columns have other types than the source's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.step import Step
from tests.hunt.tables import Table
from tests.hunt.values import VALUES

_TYPES: Final = (*VALUES, "numeric(6,3)", "char(7)", "varchar(2)", "name", "xid", "timestamp(0)", '"char"')


def writing_target(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A trigger behind the row, the statement or the transaction that writes to its own or another followed table."""
    table, other = dice.choice(tables), dice.choice(tables)
    when, each = dice.choice((("", "ROW"), ("", "STATEMENT"), ("DEFERRABLE INITIALLY DEFERRED", "ROW")))
    column = dice.choice([one for one in other.columns if one.is_sent] or other.columns)
    body = dice.choice((f"DELETE FROM {other.path}", f"UPDATE {other.path} SET {column.name} = {column.name}"))
    trigger = (
        "CREATE OR REPLACE FUNCTION public.meddle() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF pg_trigger_depth() = 1 THEN {body}; END IF; RETURN NULL; END$$",
        f"CREATE {'CONSTRAINT ' if when else ''}TRIGGER meddle AFTER INSERT OR UPDATE OR DELETE ON {table.path} {when} "
        f"FOR EACH {each} EXECUTE FUNCTION public.meddle()",
        f"ALTER TABLE {table.path} ENABLE {dice.choice(('', 'ALWAYS '))}TRIGGER meddle",
    )
    names, undone = (table.name, other.name, "meddle"), f"DROP TRIGGER meddle ON {table.path}"
    rows = tuple(dice.choice((table, other)).change(dice) for _ in range(4))
    return [
        Step(do="target", sql=trigger, kind="target writes", names=names, by_hand=(undone,)),
        Step(do=dice.choice(("source", "transaction")), sql=rows),
    ]


def odd_type(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A column of the target gets another type, where its values keep their texts by that."""
    table = dice.choice(tables)
    column = dice.choice([one for one in table.columns if one.is_sent and one.name != table.key] or table.columns)
    name, kind = column.name, dice.choice(_TYPES)
    retype = f"ALTER TABLE {table.path} ALTER COLUMN {name} TYPE {{0}} USING CASE num_nulls({name}) WHEN 0 THEN "
    retype += f"concat({name})::{{0}} END"
    by_hand = (retype.format(column.type_name),)
    return [
        Step(
            do="target",
            sql=(guarded(table, name, retype.format(kind)),),
            kind="odd type",
            names=(table.name, name),
            by_hand=by_hand,
        ),
        Step(do=dice.choice(("source", "transaction")), sql=tuple(table.change(dice) for _ in range(3))),
    ]


def guarded(table: Table, column: str, alter: str) -> str:
    """An alteration that is undone where the column's values lose their texts by it: nobody could bring them back."""
    text = f"SELECT md5(string_agg(concat({column}), ',' ORDER BY concat({column}) COLLATE \"C\")) FROM {table.path}"
    differ = f"IF texts IS DISTINCT FROM ({text}) THEN RAISE 'other texts'; END IF"
    return f"DO $$ DECLARE texts text := ({text}); BEGIN {alter}; {differ}; END $$"


ODD_TARGETS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "writing target": writing_target, "odd type": odd_type,
}  # fmt: skip

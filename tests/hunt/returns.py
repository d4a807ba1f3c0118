"""Sources that go back without having lost a followed row: what others wrote is gone, or what the catalog said."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import Recipe
from tests.hunt.servers import WENT_BACK
from tests.hunt.step import Step
from tests.hunt.tables import Table

_FAR: Final = "CREATE SCHEMA IF NOT EXISTS far", "CREATE TABLE IF NOT EXISTS far.away (t text)"


def gone_back(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """The lost transactions' ids, oids and files are given again, for more or for less than before."""
    table = dice.choice(tables)
    lost, instead = _others(dice), _others(dice)
    what = dice.choice(("others", "others", "catalog", "both"))
    alterations = _alterations(dice, table)
    lost = [*(lost if what != "catalog" else []), *(dice.sample(alterations, 1) if what != "others" else [])]
    instead = [*dice.sample([*instead, *dice.sample(alterations, dice.choice((1, 1, 2)))], len(instead) + 1)]
    kind = f"source lost {what if what != 'both' else 'others and catalog'}"
    changed = (table.name, "n", "passing", *(f"new{number}" for number in range(3)))
    return [
        Step(do="source", sql=_FAR), Step(do="source", sql=(table.insert(dice, 3),)), Step(do="run"),
        Step(do="keep", options={"side": "source"}, kind=kind),
        Step(do="source", sql=tuple(lost), kind=kind, names=changed if what != "others" else ()),
        *dice.choice(([], [Step(do="run")], [Step(do="run"), Step(do="run")])),
        Step(do="restore", options={"side": "source", "promoted": dice.random() < 0.3}, kind=kind,
             names=WENT_BACK["source"]),
        Step(do="source", sql=tuple(instead), kind=kind, names=changed),
        Step(do="source", sql=(table.insert(dice, 2), *dice.choice(((), (table.change(dice),))))),
        *dice.choice(([], [Step(do="run"), Step(do="source", sql=tuple(_others(dice)))])),
    ]  # fmt: skip


def _others(dice: random.Random) -> list[str]:
    """Rows of others, which take a transaction's id each, and WAL."""
    one = "INSERT INTO far.away VALUES ('lost')"
    burnt = "SELECT pg_current_xact_id()"
    much = "INSERT INTO far.away SELECT repeat('x', 1000) FROM generate_series(1, 100)"
    return dice.choice(
        ([one] * 3, [one] * 30, [burnt] * 40, [much], [much, *[one] * 5], [burnt, one, "SELECT pg_switch_wal()"])
    )


def _alterations(dice: random.Random, table: Table) -> list[str]:
    """Alterations of one table, some of which rewrite it; the model keeps nothing of them but what rows may ignore."""
    column = dice.choice(table.plain() or table.columns)
    name, kind = column.name, column.type_name
    value = f"{name} || '!'" if kind == "text" else "NULL" if column.nullable else name
    alter = f"ALTER TABLE {table.path}"
    collation = dice.choice(('COLLATE "C" ', 'COLLATE "POSIX" ')) if kind == "text" else ""
    return [
        f"{alter} ALTER COLUMN {name} TYPE {kind} {collation}USING {value}",
        f"{alter} ALTER COLUMN {name} TYPE {kind} {collation}USING {name}",
        f"{alter} ADD COLUMN IF NOT EXISTS n integer DEFAULT {dice.randrange(9)}",
        f"CREATE TABLE public.new{dice.randrange(3)} (id integer PRIMARY KEY)",
        f"VACUUM FULL {table.path}",
        f"{alter} ADD COLUMN passing text; {alter} DROP COLUMN passing",
    ]


RETURNS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "source gone back": gone_back,
}  # fmt: skip

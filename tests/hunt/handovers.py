"""Keys and unique values that pass from row to row, rows that are very large, and tables that foreign keys tie."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.step import Step
from tests.hunt.tables import Table

_FREE: Final = 900_000_000
"""Keys that no other row has, for the moment in which a key is free."""


def _keyed(tables: Sequence[Table]) -> list[Table]:
    return [
        one for one in tables
        if one.key and not one.leaves and not one.more and one.column("id").is_sent and one.takes_changes
    ]  # fmt: skip


def cycles(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Keys that go round, are pushed on by one, or are exchanged, in one transaction or in several."""
    able = _keyed(tables)
    if not able:
        return big_values(dice, tables)
    table = dice.choice(able)
    path = table.path
    first = dice.randrange(1, 12)
    move = f"UPDATE {path} SET id = {{}} WHERE id = {{}}"
    length = dice.choice((2, 3, 5))
    ring = [
        move.format(_FREE, first),
        *(move.format(first + place, first + place + 1) for place in range(length - 1)),
        move.format(first + length - 1, _FREE),
    ]
    pushed = (
        f"DO $$ DECLARE r record; BEGIN FOR r IN SELECT id FROM {path} WHERE id BETWEEN 1 AND 40 ORDER BY id DESC LOOP "
        f"UPDATE {path} SET id = id + 1 WHERE id = r.id; END LOOP; END $$"
    )
    emptied = [f"DELETE FROM {path} WHERE id = {first}", move.format(first, first + 1), table.insert(dice, 1)]
    statements = dice.choice((ring, ring * 2, [pushed], [pushed, *ring], emptied, [*ring, *emptied]))
    if any(column.name == "u" for column in table.columns):
        swap = [
            f"UPDATE {path} SET u = NULL WHERE id = {first}",
            f"UPDATE {path} SET u = 30000 + {first} WHERE id = {first + 1}",
            f"UPDATE {path} SET u = 31000 + {first} WHERE id = {first}",
            f"UPDATE {path} SET u = NULL WHERE id IN ({first}, {first + 1})",
            f"UPDATE {path} SET u = 31000 + {first} WHERE id = {first + 1}",
            f"UPDATE {path} SET u = 30000 + {first} WHERE id = {first}",
        ]
        statements = [*swap, *dice.choice(([], statements))]
    steps = [Step(do="source", sql=(table.insert(dice, 8),), kind="keys in cycles")]
    for _ in range(dice.choice((1, 3))):
        steps.append(Step(do=dice.choice(("transaction", "transaction", "source")), sql=tuple(statements)))
    return steps


def storm(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A few keys, over and over: inserted, updated, deleted, moved and inserted again in many small transactions."""
    able = _keyed(tables)
    if not able:
        return big_values(dice, tables)
    table = dice.choice(able)
    keys = [dice.randrange(1, 6) for _ in range(40)]
    column = dice.choice(table.plain() or table.columns).name
    forms = (
        f"INSERT INTO {table.path} (id) VALUES ({{0}}) ON CONFLICT DO NOTHING",
        f"UPDATE {table.path} SET {column} = {column} WHERE id = {{0}}",
        f"DELETE FROM {table.path} WHERE id = {{0}}",
        f"UPDATE {table.path} SET id = -{{0}} WHERE id = {{0}}",
        f"DELETE FROM {table.path} WHERE id = -{{0}}",
    )
    sql = tuple(dice.choice(forms).format(key) for key in keys)
    return [Step(do=do, sql=sql[place::2], kind="storm") for place, do in enumerate(("source", "transaction"))]


def big_values(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Rows of several megabytes, which later changes leave alone, move or take away."""
    able = [one for one in tables if any(column.type_name in ("text", "bytea", "jsonb") for column in one.plain())]
    if not able:
        return [
            Step(do="transaction", sql=tuple(dice.choice(tables).change(dice) for _ in range(20)), kind="big values")
        ]
    table = dice.choice(able)
    column = next(one for one in table.plain() if one.type_name in ("text", "bytea", "jsonb"))
    size = dice.choice((200_000, 3_000_000))
    text = f"(SELECT string_agg(md5(i::text), '') FROM generate_series(1, {size // 32}) i)"
    value = {"text": text, "bytea": f"{text}::bytea", "jsonb": f"to_jsonb({text})"}[column.type_name]
    alone = [one.name for one in table.columns if one.is_sent and one is not column]
    some = f"id = (SELECT min(id) FROM {table.path})" if table.key else f"ctid = (SELECT min(ctid) FROM {table.path})"
    big = f"UPDATE {table.path} SET {column.name} = {value} WHERE {some}"
    moved = (
        f"UPDATE {table.path} SET id = id + 5000 WHERE {some}" if table.key and not table.leaves else table.change(dice)
    )
    return [
        Step(do="source", sql=(table.insert(dice, 3), big), kind="big values"),
        *([Step(do="run")] if dice.random() < 0.5 else []),
        Step(do="transaction", sql=(table.change(dice), moved, table.change(dice), big, table.change(dice))),
        Step(do="run"),
        Step(do="source", sql=tuple(f"UPDATE {table.path} SET {name} = {name}" for name in alone[:1])),
    ]


def tied(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A foreign key on both sides, whose actions the source sends as rows, and which may be checked at the end."""
    able = [one for one in _keyed(tables) if one.create[0].endswith("PRIMARY KEY (id))") and one.schema == "public"]
    if not able:
        return storm(dice, tables)
    parent, number = dice.choice(able), dice.randrange(1000)
    child = f"public.child{number}"
    action = dice.choice(("ON DELETE CASCADE ON UPDATE CASCADE", "ON DELETE SET NULL", "ON DELETE CASCADE", ""))
    late = dice.choice(("", " DEFERRABLE INITIALLY DEFERRED"))
    make = (
        f"CREATE TABLE {child} (id integer PRIMARY KEY, r integer REFERENCES {parent.path} (id) {action}{late}, "
        f"up integer REFERENCES {child} (id) ON DELETE CASCADE)"
    )
    rows = (
        f"INSERT INTO {child} SELECT row_number() OVER (), id, NULL FROM {parent.path} ON CONFLICT DO NOTHING",
        f"UPDATE {child} SET up = id - 1 WHERE id % 3 <> 1",
        parent.change(dice),
        f"DELETE FROM {parent.path} WHERE {parent.some(dice)}",
        f"UPDATE {parent.path} SET id = id + 30000 WHERE {parent.some(dice)}",
        f"DELETE FROM {child} WHERE id % 4 = 1",
        parent.insert(dice, 2),
    )
    names = (f"child{number}", parent.name, "foreign key")
    steps = [Step(do="both", sql=(make,), kind="foreign key", names=names)]
    for _ in range(2):
        sql = (rows[0], *dice.sample(rows[1:], 4))
        steps.append(Step(do=dice.choice(("source", "transaction")), sql=sql))
        steps += [Step(do="run")] if dice.random() < 0.5 else []
    return steps


HANDOVERS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "keys in cycles": cycles, "storm": storm, "big values": big_values, "foreign key": tied,
}  # fmt: skip

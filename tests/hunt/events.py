"""Exotic events of sessions, networks and disks, messages of all kinds, and targets that act by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.odd_targets import ODD_TARGETS
from tests.hunt.step import Step
from tests.hunt.tables import Table


def messages(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Messages of every kind; those that could be taken for DDL only where nothing must come of them."""
    table = dice.choice(tables)
    emit = "SELECT pg_logical_emit_message({}, '{}', {})"
    one = emit.format(
        dice.choice(("true", "false")),
        dice.choice(("hb", "debezium", "parallel_apply", "parallel_apply.other", "")),
        dice.choice(("''", "'text'", "'\\xff00'::bytea", "repeat('x', 100000)")),
    )
    rows = [table.change(dice) for _ in range(2)]
    kind = "message"
    return dice.choice(
        (
            [Step(do="source", sql=(one,) * dice.choice((1, 30)), kind=kind)],
            [Step(do="transaction", sql=(*rows, one), kind=kind), Step(do="source", sql=(table.change(dice),))],
            [Step(do="transaction", sql=(one, *rows), kind=kind)],
            [Step(do="transaction", sql=(*rows, one), options={"rollback": True}, kind=kind)],
        )
    )


def stray_ddl_message(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """One that nobody signed: it is passed over."""
    text = dice.choice(("'\\xff'::bytea", "'CREATE TABLE public.pwned AS SELECT current_user AS c'", "'not SQL'", "''"))
    emit = f"SELECT pg_logical_emit_message({dice.choice(('true', 'false'))}, 'parallel_apply.ddl', {text})"
    return [Step(do="source", sql=(emit,), kind="stray DDL message")]


def interleaved(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A transaction that began earlier and commits later, or is prepared, while others and a run go by."""
    table = dice.choice(tables)
    end = dice.choice(("COMMIT", "ROLLBACK", "PREPARE TRANSACTION 'held'"))
    steps = [
        Step(do="session", sql=("BEGIN", table.insert(dice, 3), "SAVEPOINT s", table.insert(dice, 2)),
             kind="long transaction", options={"name": "held"}),
        Step(do="source", sql=(table.insert(dice, 2),)),
        *([Step(do="run")] if dice.random() < 0.5 else []),
        Step(do="session", sql=("ROLLBACK TO s", table.insert(dice, 1), end), options={"name": "held"}),
    ]  # fmt: skip
    if end.startswith("PREPARE"):
        steps += [Step(do="run"), Step(do="source", sql=("COMMIT PREPARED 'held'",), kind="prepared transaction")]
    return steps


def big_transaction(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    table = dice.choice(tables)
    return [Step(do="transaction", sql=tuple(table.change(dice) for _ in range(40)), kind="big transaction")]


def full_disk(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables))]
    options = {"call": dice.choice(("link", "fsync", "open")), "after": dice.randrange(4)}
    return [*rows, Step(do="full disk", options=options, kind="full disk")]


def cut_network(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(3)))]
    options = {"side": dice.choice(("source", "target")), "after_bytes": dice.randrange(2_000, 60_000)}
    return [*rows, Step(do="cut", options=options, kind="network cut")]


def acting_target(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Triggers and rules that turn rows away, and a constraint that the source does not have."""
    table = dice.choice(tables)
    kind = dice.choice(("INSERT", "UPDATE", "DELETE"))
    keyless = [one for one in tables if not any("KEY" in text or "UNIQUE" in text for text in one.create)]
    if keyless and dice.random() < 0.5:
        # Whose rows nothing but a count misses.
        table, kind = dice.choice(keyless), "INSERT"
    always = dice.choice(("", "ALWAYS "))
    body = "BEGIN RETURN NULL; END"
    trigger = (
        f"CREATE OR REPLACE FUNCTION public.swallow() RETURNS trigger LANGUAGE plpgsql AS '{body}'",
        f"CREATE TRIGGER swallow BEFORE {kind} ON {table.path} FOR EACH ROW EXECUTE FUNCTION public.swallow()",
        f"ALTER TABLE {table.path} ENABLE {always}TRIGGER swallow",
    )
    rule = (
        f"CREATE RULE swallow AS ON {kind} TO {table.path} DO INSTEAD NOTHING",
        f"ALTER TABLE {table.path} ENABLE {always}RULE swallow",
    )
    column = dice.choice(table.plain() or table.columns).name
    check = (f"ALTER TABLE {table.path} ADD CONSTRAINT odd CHECK ({column} IS NULL) NOT VALID",)
    refer = (
        f"CREATE TABLE public.referring (id integer REFERENCES {table.path})",
        "GRANT SELECT ON public.referring TO plain",
    )
    undone = {
        trigger: f"DROP TRIGGER swallow ON {table.path}",
        rule: f"DROP RULE swallow ON {table.path}",
        check: f"ALTER TABLE {table.path} DROP CONSTRAINT odd",
        refer: "DROP TABLE public.referring",
    }
    choice = dice.choice(tuple(undone))
    rows = (table.insert(dice, 3), f"TRUNCATE {table.path}" if choice is refer else table.change(dice))
    return [
        Step(do="target", sql=choice, kind="target acts", names=(table.name, column), by_hand=(undone[choice],)),
        Step(do="source", sql=rows),
    ]


EVENTS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "messages": messages, "stray DDL message": stray_ddl_message, "interleaved": interleaved,
    "big transaction": big_transaction, "full disk": full_disk, "cut network": cut_network,
    "acting target": acting_target, **ODD_TARGETS,
}  # fmt: skip

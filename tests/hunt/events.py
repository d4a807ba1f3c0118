"""Exotic events that are not definitions: messages, sessions, servers, leases, targets that act by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.step import Step
from tests.hunt.tables import Table

PLACES: Final = {
    "between staging and commit": ("pipeline.target.postgres.target:PostgresTarget.commit", "before", 1),
    "inside the target's transaction": ("pipeline.target.postgres.target:move", "before", 1),
    "between commit and finish": ("pipeline.target.postgres.target:PostgresTarget.commit", "after", 1),
    "at a barrier": ("pipeline.coordinate.coordinator:Coordinator.arrive", "after", 1),
    "inside the critical transaction": ("pipeline.target.postgres.target:Steps.run", "after", 1),
    "between the log and the slot": ("pipeline.log.writer:DirectoryLogWriter.commit", "after", 1),
    "between capture and plan": ("pipeline.apply.capture_turn:extend_plan", "before", 1),
}
"""Where a lane dies or sleeps; as `Fault` of tests/support/step_process.py has it, below the package."""


def messages(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Of every kind; those that could be taken for DDL only where nothing must come of them."""
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


def crash(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    side = dice.choice(("source", "target"))
    return [Step(do="crash", options={"side": side}, kind=f"{side} crashes")]


def restored(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A directory is copied, the history goes on, and the copy comes back."""
    side = dice.choice(("source", "source", "target"))
    table = dice.choice(tables)
    names = ("source", "timeline", "behind", "restored", "LSN") if side == "source" else ("restored", "log")
    return [
        Step(do="run"),
        Step(do="keep", options={"side": side}, kind=f"{side} restored"),
        Step(do="source", sql=tuple(table.change(dice) for _ in range(3))),
        Step(do="run"),
        Step(do="restore", options={"side": side}, kind=f"{side} restored", names=names),
        Step(do="source", sql=tuple(table.insert(dice, 2) for _ in range(dice.choice((1, 30))))),
    ]


def abandoned(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A run that was left in its middle, whose lanes come back after the routing changed under them."""
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(4)))]
    channels = Step(do="parameters", options={"channels": dice.choice((1, 2, 4, 8))}, kind="channels change")
    between = [
        Step(do="lapse", kind="lease lapses"), *([channels] if dice.random() < 0.6 else []),
        Step(do=dice.choice(("prepare", "plan", "capture"))),
    ]  # fmt: skip
    if channels in between:
        between[-1] = Step(do=between[-1].do, names=("routing", "channels"))
    wake = Step(do="wake", kind="lane wakes")
    abandon = Step(do="abandon", options={"units": dice.choice((-1, -1, 0, 2))}, kind="run abandoned")
    return [*rows, abandon, *rows, *between,
            *([wake, Step(do="run")] if dice.random() < 0.5 else [Step(do="open"), wake, Step(do="run")])]  # fmt: skip


def routing(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    changes = dice.choice(({"channels": dice.choice((1, 2, 8))}, {"partitioner": "round_robin"}, {"unit_max_bytes": 1}))
    change = Step(
        do="parameters", options=changes, kind="routing changes", names=("routing", "partitioner", "channels")
    )
    return [*([Step(do="run")] if dice.random() < 0.7 else []), change]


def killed(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(3)))]
    options = {"place": dice.choice(sorted(PLACES)), "signal": dice.choice(("KILL", "KILL", "STOP"))}
    return [*rows, Step(do="killed", options=options, kind=f"lane {options['signal'].lower()}ed"), *rows]


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


def stopped(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    rows = tuple(table.change(dice) for table in tables for _ in range(4))
    return [Step(do="source", sql=rows), Step(do="stopped", options={"units": dice.randrange(4)}, kind="stop")]


EVENTS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "messages": messages, "stray DDL message": stray_ddl_message, "interleaved": interleaved,
    "big transaction": big_transaction, "crash": crash, "restored": restored, "abandoned": abandoned,
    "routing": routing, "killed": killed, "full disk": full_disk, "cut network": cut_network,
    "acting target": acting_target, "stopped": stopped,
}  # fmt: skip

"""Exotic events of runs: left, killed, asleep, stopped, bounded, routed anew; copies made anew, logs purged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tests.hunt.step import Step
from tests.hunt.tables import Table
from tests.hunt.targets.places import PLACES as OF_OTHER_TARGETS
from tests.hunt.targets.places import Place

LANE: Final[dict[str, Place]] = {
    "between staging and commit": ("pipeline.target.postgres.target:PostgresTarget.commit", "before"),
    "inside the target's transaction": ("pipeline.target.postgres.target:move", "before"),
    "between commit and finish": ("pipeline.target.postgres.target:PostgresTarget.commit", "after"),
    "at a barrier": ("pipeline.coordinate.coordinator:Coordinator.arrive", "after"),
    "inside the critical transaction": ("pipeline.target.postgres.target:Steps.run", "after"),
}
"""Places of a lane, as `Fault` of tests/support/step_process.py has them, below the package."""
CAPTURE: Final[dict[str, Place]] = {
    "behind the run's bound": ("pipeline.source.postgres.source:PostgresSource.offset", "after"),
    "before the slot moves": ("pipeline.source.postgres.slot.slot:Slot.advance", "before"),
    "before the catalog is compared": ("pipeline.source.postgres.source:PostgresSource.look", "before"),
    "behind the catalog's comparison": ("pipeline.source.postgres.source:PostgresSource.look", "after"),
    "before the slot is read": ("pipeline.source.postgres.slot.slot:Slot.peek", "before"),
    "before a table is described": ("pipeline.source.postgres.slot.reading:SlotRead._followed", "before"),
    "before the log": ("pipeline.log.writer:DirectoryLogWriter.commit", "before"),
    "between the log and the slot": ("pipeline.log.writer:DirectoryLogWriter.commit", "after"),
    "between capture and plan": ("pipeline.apply.capture_turn:extend_plan", "before"),
}
FIRST: Final[dict[str, Place]] = {
    "before the rehearsal": ("pipeline.copy.postgres.initial:InitialCopy.rehearse", "before"),
    "behind the rehearsal": ("pipeline.copy.postgres.initial:InitialCopy.rehearse", "after"),
    "before the publication": ("pipeline.source.postgres.setup.first_run:FirstRun._publish", "before"),
    "before the hold": ("pipeline.source.postgres.setup.first_run:held", "before"),
    "before the first slot": ("pipeline.source.postgres.setup.first_run:new_slot", "before"),
    "behind the snapshot": ("pipeline.source.postgres.setup.first_run:FirstRun._definitions", "before"),
    "before the copy": ("pipeline.copy.postgres.initial:InitialCopy.run", "before"),
    "before the copy's indexes": ("pipeline.copy.postgres.initial:InitialCopy._make_rest", "before"),
    "before the first log": ("pipeline.capture.first_run:begin_log", "before"),
    "behind the first log": ("pipeline.capture.first_run:begin_log", "after"),
    "before the copy is registered": ("pipeline.copy.postgres.initial:InitialCopy.register", "before"),
}
RECOPY: Final[dict[str, Place]] = {
    "runs are kept out": ("pipeline.copy.postgres.recopy:Recopy.keep_runs_out", "after"),
    "before tables are published": ("pipeline.source.postgres.setup.recopying:Recopying._publish", "before"),
    "before the copy's slot": ("pipeline.source.postgres.setup.recopying:new_slot", "before"),
    "before rows are copied": ("pipeline.copy.postgres.recopy:Recopy._load", "before"),
    "behind the copied rows": ("pipeline.copy.postgres.recopy:Recopy._load", "after"),
    "before changes are passed over": ("pipeline.copy.postgres.recopy:pass_over", "before"),
    "behind the log of a copy": ("pipeline.copy.postgres.recopy:pass_over", "after"),
    "before the copy is recorded": ("pipeline.copy.postgres.recopy:write_recopied", "before"),
}
PLACES: Final = (
    LANE
    | CAPTURE
    | FIRST
    | RECOPY
    | {name: place for places in OF_OTHER_TARGETS.values() for name, place in places.items()}
)
_TOLD: Final = ("source", "transaction")
"""Steps that can be taken while something else is under way."""
_ENDED: Final = {"KILL": "killed", "STOP": "stopped"}
_LINES: Final = {"lane": 2500, "capture": 4500, "first run": 4500}
"""About how many different lines of the product each executes."""


def meanwhile(
    dice: random.Random, steps: Sequence[Step], tables: Sequence[Table], *, first: bool = False
) -> list[Step]:
    """One of the steps is taken while a run, the first run or a copy is at some place; the others stay."""
    able = [number for number, step in enumerate(steps) if step.do in _TOLD and step.sql]
    if not able:
        return list(steps)
    number = dice.choice(able)
    step = steps[number]
    of = "run" if first or dice.random() < 0.7 else "recopy"
    rooms = ((FIRST, CAPTURE) if first else (CAPTURE, CAPTURE, LANE)) if of == "run" else (RECOPY,)
    options = {**step.options, "do": step.do, "of": of, "place": dice.choice(sorted(dice.choice(rooms)))}
    options |= {"call": 1 if first else dice.choice((1, 1, 2, 3)), "table": dice.choice(tables).path}
    during = replace(step, do="meanwhile", options=options)
    rows = [] if first else [Step(do="source", sql=tuple(table.change(dice) for table in tables))]
    return [*steps[:number], *rows, during, *steps[number + 1 :]]


def disturbed(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A server crashes, the lease lapses, or another run begins, while a run or a copy is at some place."""
    of = dice.choice(("run", "run", "recopy"))
    room = dice.choice((CAPTURE, LANE)) if of == "run" else RECOPY
    what = dice.choice(("crash", "crash", "lapse", "run", "recopy", "die"))
    options = {"do": what, "of": of, "place": dice.choice(sorted(room)), "call": dice.choice((1, 2)),
               "side": dice.choice(("source", "target")), "table": dice.choice(tables).path}  # fmt: skip
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(2)))
    return [rows, Step(do="meanwhile", options=options, kind=f"{what} meanwhile")]


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
    of = dice.choice(("lane", "lane", "capture"))
    place = dice.choice(sorted((LANE if dice.random() < 0.7 else CAPTURE) if of == "lane" else CAPTURE))
    signal = dice.choice(("KILL", "KILL", "STOP"))
    at = {"place": place, "call": dice.choice((1, 1, 2))}
    if dice.random() < 0.5:
        at = {"line": dice.randrange(1, _LINES[of])}
    return [*rows, Step(do="killed", options={"of": of, "signal": signal, **at}, kind=f"{of} {_ENDED[signal]}"), *rows]


def killed_first_run(dice: random.Random) -> list[Step]:
    """Before the first run that is judged."""
    place = dice.choice(sorted(dice.choice((FIRST, FIRST, CAPTURE))))
    signal = dice.choice(("KILL", "KILL", "STOP"))
    at = {"place": place, "call": 1}
    if dice.random() < 0.5:
        at = {"line": dice.randrange(1, _LINES["first run"])}
    options = {"of": "capture", "signal": signal, **at}
    return [Step(do="killed", options=options, kind=f"first run {_ENDED[signal]}")]


def stopped(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    rows = tuple(table.change(dice) for table in tables for _ in range(4))
    return [Step(do="source", sql=rows), Step(do="stopped", options={"units": dice.randrange(4)}, kind="stop")]


def bounded(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A run up to an LSN that lies behind others by then."""
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(2)))]
    return [*rows, Step(do="bound"), *rows, Step(do="bounded", kind="run until an LSN")]


def captured(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Several captures before anything is applied: units of many parts, each read by itself."""
    steps = []
    for _ in range(3):
        rows = tuple(table.change(dice) for table in tables for _ in range(2))
        steps += [Step(do="source", sql=rows), Step(do="capture", kind="captured ahead")]
    return steps


def recopied(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Whole tables copied anew, with changes of theirs that nobody has read, or that nobody has applied."""
    some = dice.sample(list(tables), dice.choice((1, 1, min(2, len(tables)))))
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(2)))]
    before = dice.choice(([], rows, [*rows, Step(do="capture")], [*rows, Step(do="stopped", options={"units": 1})]))
    copy = Step(do="recopy", options={"tables": [table.path for table in some]}, kind="tables recopied")
    return [*before, copy, *dice.choice(([], rows, [*rows, copy]))]


def purged(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Remove from the log what is applied; whoever comes back behind it is refused."""
    return [Step(do="purge", kind="log purged", names=("purged",))]


RUNS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "abandoned": abandoned, "routing": routing, "killed": killed, "stopped": stopped, "bounded": bounded,
    "captured": captured,
    "recopied": recopied, "purged": purged, "disturbed": disturbed,
}  # fmt: skip

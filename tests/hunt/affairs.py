"""A pipeline's affairs: runs that are cleared, backfilled or bounded, a log that is moved, rights that are taken, a
target that is restored over alterations; transactions that are prepared, or truncate, meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import Recipe
from tests.hunt.names import NAMES
from tests.hunt.overlaps import OVERLAPS, any_recipe
from tests.hunt.parents import PARENTS
from tests.hunt.roles import source_rights
from tests.hunt.runs import abandoned, captured, killed, routing, stopped
from tests.hunt.servers import WENT_BACK, crash, promoted, restored_in_mid_run
from tests.hunt.step import Step
from tests.hunt.tables import Table

_INTERVALS: Final = 4
_STALE: Final = ("the log", "log at", "of the log", "is missing in the log", "another log")
"""The words of which a run uses one whose log is an older state of the pipeline's."""


def _rows(dice: random.Random, tables: Sequence[Table], count: int = 2) -> Step:
    return Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(count)))


def cleared(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A run begins again under its name: one that was left, killed or stopped, or that others came behind."""
    begun = dice.choice((abandoned, killed, stopped, lambda dice, tables: [Step(do="run")]))(dice, tables)
    between = dice.choice(([], [_rows(dice, tables)], [_rows(dice, tables), Step(do="run")], routing(dice, tables)))
    again = Step(do="again", options={"of": dice.choice(("disturbed", "judged"))}, kind="run cleared")
    return [
        *begun, *between, Step(do="lapse", kind="lease lapses"), again,
        *dice.choice(([], [again], [_rows(dice, tables), again])),
    ]  # fmt: skip


def backfilled(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Runs for intervals of time, in order or not, one of them again, with an ordinary run among them."""
    history: list[Step] = [Step(do="moment")]
    for _ in range(_INTERVALS):
        history += [_rows(dice, tables, 1), Step(do="moment")]
    forwards = [Step(do="interval", options={"number": one}, kind="backfill") for one in range(_INTERVALS)]
    wrong = dice.sample(forwards, len(forwards))
    runs = dice.choice((forwards, forwards[::-1], wrong, [*forwards[:2], *forwards], [*wrong, *forwards]))
    whole = dice.choice(([], [Step(do="run")]))
    place = dice.randrange(len(runs))
    return [*history, *runs[:place], *whole, *runs[place:], *dice.choice(([], [_rows(dice, tables, 1)]))]


def up_to_now(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A run whose bound lies behind the last row: green means equal for it, too; perhaps in the middle of others."""
    bound = Step(do="run", options={"bound": "now"}, kind="run until now")
    before = dice.choice(([], killed(dice, tables), stopped(dice, tables)))
    return [*before, _rows(dice, tables), bound, *dice.choice(([], [_rows(dice, tables), bound]))]


def log_moved(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """The log's directory is moved, or copied; or the pipeline goes on with a copy, and later with the original."""
    kind = "log moved"
    move = Step(do="move log", options={"how": dice.choice(("move", "copy"))}, kind=kind)
    copy = Step(do="move log", options={"how": "copy"}, kind=kind)
    back = Step(do="move log", options={"how": "back"}, kind=kind, names=_STALE)
    rows = _rows(dice, tables)
    begun = dice.choice(([], [rows], [rows, Step(do="run")], abandoned(dice, tables)[:2]))
    then = dice.choice(
        ([move], [move, rows, move], [copy, rows, Step(do="run"), back], [copy, rows, back, rows, Step(do="run"), move])
    )
    return [Step(do="run"), *begun, *then, rows]


def truncated_together(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Tables that foreign keys tie, emptied by CASCADE or by name, with followed ones and partitions, amid rows."""
    table, number = dice.choice(tables), dice.randrange(1000)
    top, below, last = (f"public.{name}{number}" for name in ("top", "below", "last"))
    names = (f"top{number}", f"below{number}", f"last{number}", "foreign key")
    make = (
        f"CREATE TABLE {top} (id integer PRIMARY KEY, v text)",
        f"CREATE TABLE {below} (id integer PRIMARY KEY, r integer REFERENCES {top} (id) ON DELETE CASCADE)",
        f"CREATE TABLE {last} (id serial PRIMARY KEY, r integer REFERENCES {below} (id) ON DELETE SET NULL)",
    )
    rows = (
        f"INSERT INTO {top} SELECT i, 'x' FROM generate_series({{0}}, {{0}} + 9) i ON CONFLICT DO NOTHING",
        f"INSERT INTO {below} SELECT id + 3, id FROM {top} ON CONFLICT DO NOTHING",
        f"INSERT INTO {last} (r) SELECT id FROM {below}",
    )
    leaf = [f"public.{dice.choice(table.leaves)}"] if table.leaves else []
    # A partition that is truncated alone is told by its table.
    told = (table.name, *table.leaves) if table.leaves else ()
    empty = (
        f"TRUNCATE {top} CASCADE",
        f"TRUNCATE {below} RESTART IDENTITY CASCADE",
        f"TRUNCATE {last}, {table.path}",
        f"TRUNCATE {', '.join((table.path, *leaf, last))} CASCADE",
        f"TRUNCATE {', '.join((*leaf, last, below, top))}",
        f"DELETE FROM {top} WHERE id % 3 = 0",
    )
    steps: list[Step | Recipe] = [Step(do="both", sql=make, kind="truncated together", names=names)]
    for start in (0, 5):
        filled = [one.format(start) for one in rows]
        sql = [*filled, dice.choice(empty), *dice.sample(filled, 2), dice.choice(empty), table.change(dice), *filled]
        do = dice.choice(("source", "transaction"))
        steps.append(Step(do=do, sql=tuple(sql), kind="truncated together", names=told))
        steps += [Step(do="run")] if dice.random() < 0.5 else []
    return steps


def prepared_through(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A transaction is prepared, and decided behind a crash, a copy, a run that dies, another routing."""
    table, other = dice.choice(tables), dice.choice(tables)
    kind = "prepared through"
    rows = tuple(table.change(dice) for _ in range(3))
    held = Step(do="session", sql=("BEGIN", *rows, "PREPARE TRANSACTION 'through'"), options={"name": "through"},
                kind=kind, names=("prepared", "open at the source"))  # fmt: skip
    copy = Step(do="recopy", options={"tables": [other.path]}, kind="tables recopied")
    between: list[Step | Recipe] = []
    for _ in range(dice.choice((1, 2, 3))):
        between += dice.choice(
            (
                [Step(do="run")], [copy], [*crash(dice, tables)], [*promoted(dice, tables)], [*killed(dice, tables)],
                [*routing(dice, tables)], [*captured(dice, tables)], [*restored_in_mid_run(dice, tables)],
                [Step(do="source", sql=(f"COMMENT ON TABLE {other.path} IS 'x'",), kind=kind), Step(do="run")],
            )
        )  # fmt: skip
    end = dice.choice(("COMMIT", "COMMIT", "ROLLBACK"))
    decided = Step(do="source", sql=(f"{end} PREPARED 'through'",), kind=kind, options={"superuser": True})
    return [held, *between, decided, *dice.choice(([], [copy], [Step(do="run")]))]


def done_again(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """The target goes back behind alterations that it has had, and meets them again; copies of tables among them."""
    kind = "target restored over changes"
    recipes = [any_recipe(dice, tables) for _ in range(dice.choice((1, 1, 2)))]
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables))
    copy = Step(do="recopy", options={"tables": [dice.choice(tables).path]}, kind="tables recopied")
    stop = Step(do="stopped", options={"units": 1}, kind="stop")
    run = Step(do="run")
    return [
        run, Step(do="keep", options={"side": "target"}, kind=kind), *recipes, rows,
        *dice.choice(([], [run], [run], [run, copy, rows], [run, copy, rows, run], [stop])),
        Step(do="restore", options={"side": "target"}, kind=kind, names=WENT_BACK["target"]),
        *dice.choice(([], [rows])),
    ]  # fmt: skip


AFFAIRS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "run cleared": cleared, "backfill": backfilled, "run until now": up_to_now, "log moved": log_moved,
    "source rights taken": source_rights, "truncated together": truncated_together,
    "prepared through": prepared_through, "target restored over changes": done_again,
    **OVERLAPS, **NAMES, **PARENTS,
}  # fmt: skip

"""Moments that are not the same for all: bounds within migrations, targets that are migrated ahead of the rows, two
pipelines of one log, commits that change their form, keys that are checked late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from tests.hunt.migrations import BOUND, RECIPES, ROWS, RUN, Recipe
from tests.hunt.partitioning import PARTITIONING
from tests.hunt.round_trips import ROUND_TRIPS
from tests.hunt.runs import abandoned, killed, stopped
from tests.hunt.shadows import SHADOWS
from tests.hunt.step import Step
from tests.hunt.tables import Table
from tests.hunt.whole_tables import WHOLE_TABLES, archive, rename_table, swap_tables

NEED_SECOND: Final = ("two pipelines",)
"""Kinds that need another pipeline of the log, and a target of its own."""


NEED_EPOCHS: Final = ("seen whole",)
"""Kinds that say nothing with `consistency=channel`."""
_SEEN_BEHIND: Final = {"abandon": (0, 1, 2), "stopped": (1, 2), "killed": (0,)}
"""How many units go by before a run is cut off: before the first one, and behind the last, there is nothing to see. A
run that is killed is so at a place.
"""


def any_recipe(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """An alteration of one table or of several."""
    live = [table for table in tables if table.schema == "public"] or tables
    able = [table for table in live if len(table.plain()) >= 2]
    if not able or dice.random() < 0.6:
        rooms = WHOLE_TABLES | PARTITIONING | ROUND_TRIPS | SHADOWS
        return rooms[dice.choice(sorted(rooms))](dice, live)
    table = dice.choice(able)
    recipe = RECIPES[dice.choice(sorted(RECIPES))](dice, table)
    recipe.names = [name for name in recipe.names if name] and [*recipe.names, table.name]
    return recipe


def _rows(dice: random.Random, tables: Sequence[Table]) -> Step:
    return Step(do=dice.choice(("source", "transaction")), sql=tuple(table.change(dice) for table in tables))


def bounded_within(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A run ends in the middle of a migration: green means equal to what the source was then."""
    before, recipe = _rows(dice, tables), any_recipe(dice, tables)
    place = dice.randint(0, len(recipe.statements))
    statements = [one for one in recipe.statements[:place] if one != RUN]
    statements += [BOUND, *(one for one in recipe.statements[place:] if one != RUN)]
    bounded = Step(do="bounded", kind="run until within")
    return [
        *dice.choice(([], [Step(do="run")])), before, replace(recipe, statements=statements, alone=True),
        *dice.choice(([], [_rows(dice, tables)])), bounded, *dice.choice(([], [bounded])),
    ]  # fmt: skip


def ahead(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """The target is migrated by hand, as the source, while rows of before are still to come."""
    before = _rows(dice, tables)
    makes = dice.choice((any_recipe, archive, swap_tables, rename_table, chained))
    recipe = makes(dice, tables)
    begun = dice.choice(([], [Step(do="run")], [Step(do="capture")], stopped(dice, tables)))
    return [Step(do="run"), before, *begun, replace(recipe, is_ahead=True), _rows(dice, tables)]


def chained(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Each table gets the name of the next one, and the last one a new name."""
    live = [table for table in tables if table.schema == tables[0].schema]
    names, free = [table.name for table in live], f"last{dice.randrange(1000)}"
    statements: list[str] = []
    for table, name in reversed(list(zip(live, [*names[1:], free], strict=True))):
        statements += [f"ALTER TABLE {table.path} RENAME TO {name}", *dice.choice(([], [], [ROWS]))]
    for table, name in zip(live, [*names[1:], free], strict=True):
        table.name = name
    return Recipe(statements=[one for one in statements if one != ROWS] + [ROWS], names=[*names, free])


def two_pipelines(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Another pipeline follows the log at its own pace, into a target of its own."""
    other = Step(do="second", kind="two pipelines")
    middle = dice.choice(
        (
            [],
            [any_recipe(dice, tables)],
            killed(dice, tables),
            abandoned(dice, tables),
            [any_recipe(dice, tables), other],
        )
    )
    begun = dice.choice(([], [other], [_rows(dice, tables), other]))
    return [*begun, _rows(dice, tables), *middle, *dice.choice(([], [Step(do="run")])), other, _rows(dice, tables)]


def second_of(dice: random.Random) -> dict[str, Any]:
    """The other pipeline's own parameters."""
    return {
        "channels": dice.choice((1, 2, 5)), "ddl": dice.choice(("refuse", "apply")),
        "consistency": dice.choice(("channel", "epoch")), "store": dice.choice(("log", "channel_log")),
    }  # fmt: skip


def commits_changed(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Consistency, protocol or store is another one for the next run; before it a run was left, killed or stopped."""
    options = dice.choice(
        (
            {"consistency": "epoch", "epoch_protocol": "two_phase"},
            {"consistency": "epoch", "epoch_protocol": "leader_merge"},
            {"consistency": "channel"}, {"store": "log"}, {"store": "channel_log"}, {"store": "memory"},
        )
    )  # fmt: skip
    change = Step(do="parameters", options=options, kind="commits changed")
    left = dice.choice((abandoned, killed, stopped, lambda dice, tables: []))(dice, tables)
    begun = [one for one in left if one.do in ("source", "abandon", "killed", "stopped")]
    return [_rows(dice, tables), *begun, Step(do="lapse", kind="lease lapses"), change, _rows(dice, tables)]


def late_keys(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Unique values that the source checks at the end of a statement or transaction go from row to row."""
    number = dice.randrange(1000)
    path, kind = f"public.late{number}", "late keys"
    late = dice.choice(("DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"))
    identity = dice.choice(("PRIMARY KEY (id)", "PRIMARY KEY (id), EXCLUDE USING btree (w WITH =) DEFERRABLE"))
    make = f"CREATE TABLE {path} (id integer, u integer, w integer, v text, {identity}, UNIQUE (u) {late})"
    # A key that is checked late is no arbiter of ON CONFLICT.
    fill = (
        f"INSERT INTO {path} SELECT i, i, i, 'x' FROM generate_series({{0}}, {{0}} + 20) i "
        f"WHERE NOT EXISTS (SELECT FROM {path} WHERE id = i OR u = i OR w = i)"
    )
    moves = (
        f"UPDATE {path} SET u = u + 1",
        f"UPDATE {path} SET u = (SELECT max(u) + min(u) FROM {path}) - u",
        f"UPDATE {path} SET u = u - 1, w = w + 1",
        f"UPDATE {path} SET id = id + 40000 WHERE id % 2 = 0",
        f"DELETE FROM {path} WHERE id % 5 = 0",
        f"SET CONSTRAINTS ALL DEFERRED; UPDATE {path} SET u = 7 WHERE id = 3; UPDATE {path} SET u = 3 WHERE id = 7",
        fill.format(30),
    )
    steps: list[Step | Recipe] = [Step(do="both", sql=(make,), kind=kind, names=(f"late{number}",))]
    for first in (1, 100):
        sql = (fill.format(first), *dice.choices(moves, k=5))
        steps += [Step(do=dice.choice(("source", "transaction")), sql=sql), *dice.choice(([], [Step(do="run")]))]
    return steps


def seen_whole(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Rows of one transaction lie in several channels: with `consistency=epoch` nobody ever sees a part of them."""
    number = dice.randrange(1000)
    path, kind = f"public.whole{number}", "seen whole"
    make = f"CREATE TABLE {path} (id integer PRIMARY KEY, v integer)"
    fill = f"INSERT INTO {path} SELECT i, 0 FROM generate_series(1, 12) i"
    rows = [
        f"UPDATE {path} SET v = v + 1",
        f"UPDATE {path} SET v = v + 1, id = id + 20",
        dice.choice(tables).change(dice),
    ]
    steps: list[Step | Recipe] = [Step(do="both", sql=(make,), kind=kind, names=(f"whole{number}",))]
    steps += [Step(do="source", sql=(fill,)), Step(do="run")]
    for _ in range(2):
        left = dice.choice((abandoned, killed, stopped))(dice, tables)
        cut = next(place for place, one in enumerate(left) if one.do in ("abandon", "killed", "stopped"))
        written = Step(do="source", sql=tuple(dice.choice(rows) for _ in range(5)))
        cut_off = replace(left[cut], options={**left[cut].options, "units": dice.choice(_SEEN_BEHIND[left[cut].do])})
        steps += [*left[:cut], written, cut_off, Step(do="whole", options={"table": path}, kind=kind)]
    return [*steps, Step(do="lapse", kind="lease lapses")]


OVERLAPS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "run until within": bounded_within, "migrated ahead": ahead, "two pipelines": two_pipelines,
    "commits changed": commits_changed, "late keys": late_keys,
    "seen whole": seen_whole,
}  # fmt: skip

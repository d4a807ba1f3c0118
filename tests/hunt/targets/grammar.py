"""A seed's trial with a target of another kind: the grammar of the others, cut to what the target can.

What the target refuses by value is left out of the rows, but for an event of its own: it is refused by table and
column, and what the hint says leads on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.hunt.affairs import AFFAIRS
from tests.hunt.events import big_transaction, cut_network, full_disk, interleaved, messages, stray_ddl_message
from tests.hunt.grammar import BULK, ordinary, parameters_of, performed
from tests.hunt.migrations import RECIPES, ROWS, Recipe
from tests.hunt.runs import CAPTURE, LANE, RUNS, meanwhile
from tests.hunt.servers import SERVERS
from tests.hunt.step import Step, Trial
from tests.hunt.tables import KINDS, Table
from tests.hunt.targets.places import PLACES
from tests.hunt.upkeep import UPKEEP
from tests.hunt.values import TYPES, VALUES

_EVENTS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "messages": messages, "stray DDL message": stray_ddl_message, "interleaved": interleaved,
    "big transaction": big_transaction, "full disk": full_disk, "cut network": cut_network,
}  # fmt: skip
_SERVERS: Final = ("crash", "restored", "promoted", "settings", "slot lost", "log lost")
_RUNS: Final = ("abandoned", "routing", "killed", "stopped", "bounded", "captured", "purged", "disturbed")
_APART: Final = "consistency changes"
_WEIGHTS: Final = {"runs": 4, "servers": 3}
"""How often rooms are chosen, besides 1: more often where targets differ, in what a commit is and in what it leaves."""
_FOLLOWED: Final = (
    "column added", "column added, constant default", "column renamed", "column names swapped", "column dropped",
    "column dropped and added", "replica identity changed", "generated column added", "table rewritten",
)  # fmt: skip
"""Migrations that a person can make in another product by hand."""
_BEFORE: Final = "rows before a change"
_AFFAIRS: Final = ("run cleared", "backfill", "run until now", "log moved", "prepared through", "commits changed")
_DATES: Final = {
    "date": ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'"),
    "timestamp": ("'infinity'", "'0044-03-15 01:02:03 BC'", "'294276-12-31'"),
    "timestamptz": ("'infinity'", "'-infinity'", "'0044-03-15 01:02:03+00 BC'", "'294276-12-31 00:00+00'"),
}
_AWKWARD: Final = {"awkward key", "composite key", "full"}
"""Kinds of tables that a target may refuse by name, for a key without a common text, or for none."""
_TIMES: Final = _DATES | {"time": ("'24:00:00'",)}
_REFUSED: Final = "value refused"
_MEANWHILE: Final = 0.2
_DROPPED: Final = ("target", "both", "recopy", "dump", "load")
"""Steps that other targets have no place for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Able:
    """The abilities of a target. `refused`: values by type that it takes nowhere; `mended`: types of which a hint leads
    on from such a value; `is_lasting`: it can be copied and put back; `crashes`: it has a server.
    """

    ddl: tuple[str, ...]
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_lasting: bool = True
    crashes: bool = False
    mended: tuple[str, ...] = ("date", "timestamp", "timestamptz")
    migrations: tuple[str, ...] = _FOLLOWED


ABLE: Final[dict[str, Able]] = {
    "files": Able(
        ddl=("refuse", "apply", "apply"), refused=_TIMES, migrations=tuple(RECIPES),
    ),
    "kafka": Able(
        ddl=("refuse",), refused=_TIMES, is_lasting=False, crashes=True, migrations=tuple(RECIPES),
    ),
    "delta": Able(ddl=("refuse", "apply", "apply"), refused=_DATES),
    "delta-feed": Able(ddl=("refuse", "apply", "apply"), refused=_DATES),
    "mariadb": Able(
        ddl=("refuse",),
        refused=_TIMES | {
            "double precision": ("'NaN'", "'Infinity'", "'-Infinity'"), "real": ("'NaN'",),
            "text": ("repeat('y', 900)",),
        },
        crashes=True,
        mended=("date",),
    ),
}  # fmt: skip


def trial(seed: str, only: Collection[str] = ()) -> Trial:
    """The same for the same seed, which names the target: `delta:1234.7`. `only`: kinds of exotic things."""
    target, dice = seed.partition(":")[0], random.Random(f"hunt {seed}")
    able = ABLE[target]
    parameters = {
        **parameters_of(dice), "target": target, "start": dice.choice(("copy", "empty")),
        "ddl": dice.choice(able.ddl), "role": "postgres",
        "consistency": dice.choice(("channel", "channel", "epoch")), "epoch_protocol": "leader_merge",
        "store": dice.choice(("log", "channel_log", "memory")),
    }  # fmt: skip
    kinds = dice.sample(sorted(KINDS), 3)
    if set(kinds) <= _AWKWARD:
        kinds[0] = "keyed"
    tables = [KINDS[kind](dice, f"t{number}") for number, kind in enumerate(kinds)]
    may_refuse = [table.path for kind, table in zip(kinds, tables, strict=True) if kind in _AWKWARD]
    steps = [Step(do="source", sql=TYPES), *(Step(do="source", sql=tuple(table.create)) for table in tables)]
    steps += [Step(do="tables", options={"may_refuse": may_refuse})]
    rows = [Step(do="source", sql=(table.insert(dice, 6), *table.more)) for table in tables]
    steps += [*rows, Step(do="run")] if parameters["start"] == "copy" else [Step(do="run"), *rows]
    for _ in range(dice.choice((1, 1, 2, 2, 3))):
        steps += ordinary(dice, tables, dice.randint(0, 2))
        steps += _exotic(dice, able, tables, parameters, only)
        steps += ordinary(dice, tables, dice.randint(0, 2))
        if dice.random() < 0.5:
            steps += [Step(do="run")]
    steps += [Step(do="touch", sql=(table.insert(dice, 2),), options={"table": table.path}) for table in tables]
    cut = _cut([*steps, Step(do="run"), Step(do="run")], dice, target)
    return Trial(seed=seed, parameters=parameters, steps=tuple(cut))


def _exotic(
    dice: random.Random, able: Able, tables: Sequence[Table], parameters: Mapping[str, Any], only: Collection[str]
) -> list[Step]:
    rooms = {
        "rows": tuple(BULK), "events": tuple(_EVENTS), "servers": _SERVERS, "runs": (*_RUNS, _APART),
        "migrations": (*able.migrations, _BEFORE), "upkeep": tuple(UPKEEP), "values": (_REFUSED,),
        "affairs": _AFFAIRS,
    }  # fmt: skip
    found = {room: sorted(set(kinds) & set(only or kinds)) for room, kinds in rooms.items()}
    filled = [room for room, kinds in found.items() if kinds] or list(rooms)
    (room,) = dice.choices(filled, [_WEIGHTS.get(one, 1) for one in filled])
    kind = dice.choice(found[room] or list(rooms[room]))
    steps = _made(dice, able, room, kind, list(tables), parameters)
    return meanwhile(dice, steps, tables) if dice.random() < _MEANWHILE else steps


def _made(
    dice: random.Random, able: Able, room: str, kind: str, tables: list[Table], parameters: Mapping[str, Any]
) -> list[Step]:
    match room:
        case "rows":
            return BULK[kind](dice, tables)
        case "events":
            return _EVENTS[kind](dice, tables)
        case "servers":
            return SERVERS[kind](dice, tables)
        case "runs":
            return _left_apart(dice, tables, parameters) if kind == _APART else RUNS[kind](dice, tables)
        case "upkeep":
            return performed(dice, kind, UPKEEP[kind](dice, tables), tables, dict(parameters))
        case "values":
            return _refused_value(dice, able, tables)
        case "affairs":
            steps: list[Step] = []
            for one in AFFAIRS[kind](dice, tables):
                steps += performed(dice, kind, one, tables, dict(parameters)) if isinstance(one, Recipe) else [one]
            return steps
    changeable = [table for table in tables if len(table.plain()) >= 2]
    if not changeable:
        return []
    table = dice.choice(changeable)
    if kind == _BEFORE:
        return _rows_before_a_change(dice, able, table)
    recipe = RECIPES[kind](dice, table)
    recipe.names = [*(name for name in recipe.names if name), table.name]
    steps = performed(dice, kind, recipe, [table], dict(parameters))
    # Each definition is met by itself: a person changes the target's table once it is told to him.
    return [one for step in steps for one in ((step, Step(do="run")) if step.by_hand else (step,))]


def _rows_before_a_change(dice: random.Random, able: Able, table: Table) -> list[Step]:
    """A transaction writes rows, few or many, alters their table, and writes to it again."""
    many = [f"INSERT INTO {table.path} (id) SELECT i FROM generate_series(200001, 200600) i"] if table.key else []
    before = [*(table.change(dice) for _ in range(3)), *dice.choice(([], [], many))]
    recipe = RECIPES[dice.choice([kind for kind in able.migrations if kind != "table rewritten"])](dice, table)
    # What fails in a transaction is undone there by itself, but no VACUUM can run in one.
    altered = [table.change(dice) if one == ROWS else one for one in recipe.statements if not one.startswith("VACUUM")]
    names = (*(name for name in recipe.names if name), table.name)
    by_hand = tuple(one for one in recipe.by_hand if not one.startswith("VACUUM"))
    sql = (*before, *altered, *(table.change(dice) for _ in range(2)))
    return [Step(do="transaction", sql=sql, kind=_BEFORE, names=names, by_hand=by_hand), Step(do="run")]


def _left_apart(dice: random.Random, tables: Sequence[Table], parameters: Mapping[str, Any]) -> list[Step]:
    """A run of lanes that go ahead of each other ends between them, and one that keeps them together goes on, or the
    other way round.
    """
    first, then = dice.choice((("channel", "epoch"), ("channel", "epoch"), ("epoch", "channel")))
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(4)))
    place = dice.choice(sorted(PLACES[parameters["target"]]))
    ended = {"of": "lane", "signal": "KILL", "place": place, "call": dice.choice((1, 1, 2, 3))}
    return [
        Step(do="run"), rows, Step(do="parameters", options={"consistency": first}),
        Step(do="killed", options=ended, kind="lane killed"), *dice.choice(([], [rows])),
        Step(do="parameters", options={"consistency": then}, kind=_APART), Step(do="run"),
    ]  # fmt: skip


def _refused_value(dice: random.Random, able: Able, tables: Sequence[Table]) -> list[Step]:
    """A value that the target's column cannot hold; none where no table has such a column."""
    found = [(table, column) for table in tables for column in table.plain() if column.type_name in able.mended]
    if not found:
        return []
    table, column = dice.choice(found)
    value = f"{dice.choice(able.refused[column.type_name])}::{column.type_name}"
    change = f"UPDATE {table.path} SET {column.name} = {value} WHERE {table.some(dice)}"
    rows = table.insert(dice, 6)
    return [Step(do="source", sql=(rows, change), kind=_REFUSED, names=(table.name, column.name)), Step(do="run")]


def _cut(steps: Iterable[Step], dice: random.Random, target: str) -> list[Step]:
    """Steps without what the target has no place for."""
    able = ABLE[target]
    plain = _plain_values(able.refused)
    found = []
    for step in steps:
        options = dict(step.options)
        side = options.get("side")
        if step.do in _DROPPED and (step.do not in ("dump", "load") or side == "target"):
            continue
        if side == "target" and not _takes(step.do, able):
            if step.do in ("keep", "restore", "crash", "promote"):
                continue
            options["side"] = "source"
        if options.get("do") == "recopy":
            options["do"] = "run"
        if options.get("of") == "recopy":
            options |= {"of": "run", "place": dice.choice(sorted(CAPTURE))}
        if "epoch_protocol" in options:
            options["epoch_protocol"] = "leader_merge"
        if options.get("place") in LANE:
            options["place"] = dice.choice(sorted(PLACES[target]))
        sql = step.sql if step.kind == _REFUSED else tuple(_replaced(statement, plain) for statement in step.sql)
        found.append(replace(step, sql=sql, options=options))
    return found


def _takes(do: str, able: Able) -> bool:
    """True if a step may be done at the target's side."""
    return able.is_lasting if do in ("keep", "restore") else able.crashes and do in ("crash", "meanwhile")


def _plain_values(refused: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """For each refused value another one of its type, as SQL."""
    return {
        f"{value}::{name}": f"{next(one for one in VALUES[name] if one not in values)}::{name}"
        for name, values in refused.items()
        for value in values
    }


def _replaced(statement: str, plain: Mapping[str, str]) -> str:
    for value, another in plain.items():
        statement = statement.replace(value, another)
    return statement

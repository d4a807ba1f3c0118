"""A seed's trial: an ordinary workload over a few tables of every kind, and one to three exotic things in it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Final

from tests.hunt.affairs import AFFAIRS
from tests.hunt.events import EVENTS
from tests.hunt.handovers import HANDOVERS
from tests.hunt.hands import HANDS, NEED_BRANCHES
from tests.hunt.loads import LOADS
from tests.hunt.migrations import BOUND, RECIPES, RECOPY, ROWS, RUN, Recipe
from tests.hunt.overlaps import NEED_EPOCHS, NEED_SECOND, second_of
from tests.hunt.partitioning import NEED_RANGES, PARTITIONING
from tests.hunt.rebuilds import REBUILDS
from tests.hunt.relations import RELATIONS
from tests.hunt.returns import RETURNS
from tests.hunt.roles import NEED_READER
from tests.hunt.round_trips import ROUND_TRIPS
from tests.hunt.runs import RUNS, killed_first_run, meanwhile
from tests.hunt.servers import SERVERS
from tests.hunt.sessions import SESSIONS
from tests.hunt.shadows import SHADOWS
from tests.hunt.step import Step, Trial
from tests.hunt.strangers import STRANGERS
from tests.hunt.tables import KINDS, Table, ranged
from tests.hunt.type_changes import TYPE_CHANGES
from tests.hunt.upkeep import UPKEEP
from tests.hunt.values import TYPES
from tests.hunt.whole_tables import WHOLE_TABLES
from tests.support.ddl_messages import ddl

_ROOMS: Final = (RECIPES, WHOLE_TABLES, EVENTS, SERVERS, RUNS)
_WEIGHTS: Final = (4, 3, 2, 2, 3)
TOOLS: Final = REBUILDS | PARTITIONING | SHADOWS | TYPE_CHANGES | ROUND_TRIPS | UPKEEP | RELATIONS
"""The changes that tools and their users make, in steps that belong together."""
BULK: Final = LOADS | HANDOVERS
"""The same of rows."""
SCENES: Final = SESSIONS | STRANGERS | HANDS | RETURNS
"""Steps of several sides that belong together."""
_OF_SCENES: Final = 0.4
"""How many trials have scenes in them; an exotic thing of these is a scene in two of three cases."""
_OF_AFFAIRS: Final = 0.3
"""How many trials have affairs of their pipeline in them, as if these were scenes."""
_NEED_RANGES: Final = {
    *NEED_RANGES,
    "attached for a while",
    "publication and back",
    "partition and back",
    "partition of another order",
}
_OF_RANGES: Final = 0.25
"""How many trials have a table that is partitioned by ranges, besides those that it comes to by chance."""
_NEED_PARTITIONS: Final = {
    "partition attached",
    "partition passes through",
    "partition detached",
    "partition truncated",
}
_OF_TOOLS: Final = 0.5
"""How many trials have tools in them; an exotic thing of these is a tool's in half of the cases."""
_WITHOUT_EVENT_TRIGGER: Final = (
    "DROP EVENT TRIGGER IF EXISTS parallel_apply_capture_ddl",
    "DROP EVENT TRIGGER IF EXISTS parallel_apply_capture_rewrite",
    "DROP EVENT TRIGGER IF EXISTS parallel_apply_note_parts",
    "DROP EVENT TRIGGER IF EXISTS parallel_apply_capture_removal",
)
_FIRST: Final = ("meanwhile", "first run killed")
_MEANWHILE: Final = 0.2
"""How many of the exotic things are done while a run or a copy is at some place."""


def trial(seed: str, only: Collection[str] = ()) -> Trial:
    """The same for the same seed, on every machine. `only`: kinds of exotic things; empty: all."""
    dice = random.Random(f"hunt {seed}")
    # With dice of its own: what else a seed says stays.
    consistency = random.Random(f"hunt consistency {seed}").choice(("channel", "channel", "epoch"))
    store = random.Random(f"hunt store {seed}").choice(("log", "channel_log", "memory"))
    parameters = {**parameters_of(dice), "consistency": consistency, "store": store}
    if consistency == "epoch":
        parameters["epoch_protocol"] = random.Random(f"hunt protocol {seed}").choice(("leader_merge", "two_phase"))
    tables = [KINDS[kind](dice, f"t{number}") for number, kind in enumerate(dice.sample(sorted(KINDS), 3))]
    partitioning = random.Random(f"hunt partitions {seed}")
    if partitioning.random() < (_OF_RANGES if not {*only} & _NEED_PARTITIONS else 1):
        tables[0] = ranged(dice, "t0", with_default=partitioning.random() < 0.5)
    tools = _tools(random.Random(f"hunt tools {seed}"), tables, only)
    scenes = iter(
        _scenes(random.Random(f"hunt affairs {seed}"), AFFAIRS, _OF_AFFAIRS, tables, parameters, only)
        or _scenes(random.Random(f"hunt scenes {seed}"), SCENES, _OF_SCENES, tables, parameters, only)
    )
    steps = [Step(do="both" if parameters["start"] != "copy" else "source", sql=TYPES)]
    for table in tables:
        steps += [Step(do=steps[0].do, sql=tuple(table.create))]
    if parameters["start"] == "copy":
        steps += [Step(do="source", sql=(table.insert(dice, 6),)) for table in tables]
    steps += [Step(do="source", sql=_WITHOUT_EVENT_TRIGGER, options={"superuser": True})] if next(tools, "") else []
    steps += _first(dice, tables, parameters, only)
    steps += [Step(do="source", sql=tuple(table.more)) for table in tables if table.more]
    for _ in range(dice.choice((1, 1, 1, 2, 2, 3))):
        steps += ordinary(dice, tables, dice.randint(0, 2))
        tool, scene = next(tools, ""), next(scenes, "")
        if scene:
            steps += _of_scene(dice, scene, tables, parameters)
        else:
            steps += _of_tool(dice, tool, tables, parameters) if tool else _exotic(dice, tables, parameters, only)
        steps += ordinary(dice, tables, dice.randint(0, 2))
        if dice.random() < 0.5:
            steps += [Step(do="run")]
    # A definition travels with the next row: without this the two sides may differ in columns that hold nothing yet.
    steps += [Step(do="touch", sql=(table.insert(dice, 2),), options={"table": table.path}) for table in tables]
    steps += [Step(do=do) for do in ("run", "run", *(("second", "second") if "second" in parameters else ()))]
    return Trial(seed=seed, parameters=parameters, steps=tuple(steps))


def parameters_of(dice: random.Random) -> dict[str, Any]:
    return {
        "start": dice.choice(("copy", "copy", "copy", "empty")),
        "ddl": dice.choice(("refuse", "apply", "apply")),
        "channels": dice.choice((1, 2, 3, 8)),
        "epoch_max_changes": dice.choice((1, 7, 40, 100_000)),
        "unit_max_bytes": dice.choice((300, 2**28)),
        "step_changes": dice.choice((1, 10, 200_000)),
        "role": dice.choice(("postgres", "postgres", "plain")),
        "source_role": dice.choice(("postgres", "postgres", "reader")),
        "queue": dice.choice(("target", "target", "elsewhere")),
    }


def ordinary(dice: random.Random, tables: list[Table], count: int) -> list[Step]:
    steps = []
    for _ in range(count):
        statements = tuple(dice.choice(tables).change(dice) for _ in range(dice.randint(1, 4)))
        do = dice.choice(("source", "transaction"))
        options = {"rollback": True} if do == "transaction" and dice.random() < 0.1 else {}
        steps.append(Step(do=do, sql=statements, options=options))
    return steps


def _first(dice: random.Random, tables: list[Table], parameters: dict[str, Any], only: Collection[str]) -> list[Step]:
    """The first run, and perhaps what disturbs it."""
    kinds = [kind for kind in _FIRST if kind in (only or _FIRST)]
    is_wanted = dice.random() < _MEANWHILE or (only and set(only) <= set(_FIRST))
    kind = dice.choice(kinds) if parameters["start"] == "copy" and kinds and is_wanted else ""
    if kind == "first run killed":
        return [*killed_first_run(dice), Step(do="run")]
    if kind == "meanwhile":
        room = dice.choices((RECIPES, WHOLE_TABLES), (2, 1))[0]
        return [*meanwhile(dice, _made(dice, dice.choice(sorted(room)), tables, parameters), tables, first=True),
                Step(do="run")]  # fmt: skip
    return [Step(do="run")]


def _exotic(dice: random.Random, tables: list[Table], parameters: dict[str, Any], only: Collection[str]) -> list[Step]:
    rooms = [sorted(set(room) & set(only or room)) for room in _ROOMS]
    if not any(rooms):
        rooms = [sorted(room) for room in _ROOMS]
    (room,) = dice.choices(rooms, [weight if kinds else 0 for kinds, weight in zip(rooms, _WEIGHTS, strict=True)])
    live = [table for table in tables if table.schema == "public"] or tables
    if not any(table.leaves for table in live):
        room = [kind for kind in room if kind not in _NEED_PARTITIONS] or room
    steps = _made(dice, dice.choice(room), live, parameters)
    if dice.random() < _MEANWHILE or (only and set(only) <= set(_FIRST)):
        steps = meanwhile(dice, steps, live)
    return steps


def _tools(dice: random.Random, tables: list[Table], only: Collection[str]) -> Iterator[str]:
    """Return "without" to do without the event trigger, or nothing; then the tool of each exotic thing, empty where it
    is another thing. It needs dice of its own: a trial without tools stays what it was.
    """
    kinds = sorted((TOOLS | BULK).keys() & set(only or TOOLS | BULK))
    others = {kind for room in _ROOMS for kind in room} & set(only)
    if not kinds or (dice.random() >= _OF_TOOLS and not only):
        return iter(())
    chosen = [dice.choice(kinds) if not dice.random() < (0.5 if others or not only else 0.0) else "" for _ in range(3)]
    if set(chosen) & set(NEED_RANGES) and not any(table.leaves for table in tables):
        tables[0] = ranged(dice, "t0", with_default=dice.random() < 0.5)
    return iter(("without" if dice.random() < 0.3 else "", *chosen))


def _scenes(
    dice: random.Random,
    room: Collection[str],
    share: float,
    tables: list[Table],
    parameters: dict[str, Any],
    only: Collection[str],
) -> list[str]:
    """The scene, of a room, of each exotic thing, empty where it is another thing. As `_tools`."""
    kinds = sorted({*room} & set(only or room))
    if not kinds or (dice.random() >= share and not only):
        return []
    others = not {*only} <= {*room} or not only
    chosen = [dice.choice(kinds) if not (others and dice.random() < 1 / 3) else "" for _ in range(3)]
    if set(chosen) & _NEED_RANGES and not any(table.leaves for table in tables):
        tables[0] = ranged(dice, "t0", with_default=dice.random() < 0.5)
    if set(chosen) & set(NEED_BRANCHES):
        parameters |= {"consistency": "epoch", "epoch_protocol": "two_phase"}
    if set(chosen) & set(NEED_EPOCHS):
        parameters |= {"consistency": "epoch", "epoch_protocol": "leader_merge"}
        parameters["channels"] = max(parameters["channels"], 2)
    if set(chosen) & set(NEED_SECOND):
        parameters |= {"start": "empty", "second": second_of(dice)}
    if set(chosen) & set(NEED_READER):
        parameters |= {"source_role": "reader"}
    return chosen


def _of_scene(dice: random.Random, kind: str, tables: list[Table], parameters: dict[str, Any]) -> list[Step]:
    live = [table for table in tables if table.schema == "public"] or tables
    steps: list[Step] = []
    for one in (SCENES | AFFAIRS)[kind](dice, live):
        steps += performed(dice, kind, one, live, parameters) if isinstance(one, Recipe) else [one]
    return meanwhile(dice, steps, live) if dice.random() < _MEANWHILE else steps


def _of_tool(dice: random.Random, kind: str, tables: list[Table], parameters: dict[str, Any]) -> list[Step]:
    live = [table for table in tables if table.schema == "public"] or tables
    steps = (
        performed(dice, kind, TOOLS[kind](dice, live), live, parameters) if kind in TOOLS else BULK[kind](dice, live)
    )
    return meanwhile(dice, steps, live) if dice.random() < _MEANWHILE else steps


def _made(dice: random.Random, kind: str, tables: list[Table], parameters: dict[str, Any]) -> list[Step]:
    if kind in RECIPES:
        able = [table for table in tables if len(table.plain()) >= 2]
        if not able:
            return []
        table = dice.choice(able)
        recipe = RECIPES[kind](dice, table)
        recipe.names = [name for name in recipe.names if name] and [*recipe.names, table.name]
        return performed(dice, kind, recipe, [table], parameters)
    if kind in WHOLE_TABLES:
        return performed(dice, kind, WHOLE_TABLES[kind](dice, tables), tables, parameters)
    return next(room[kind] for room in (EVENTS, SERVERS, RUNS) if kind in room)(dice, tables)


def performed(
    dice: random.Random, kind: str, recipe: Recipe, tables: list[Table], parameters: dict[str, Any]
) -> list[Step]:
    """In one transaction or one after the other; with messages or without."""
    with_messages = dice.random() < (0.5 if parameters["ddl"] == "apply" else 0.1)
    together = dice.random() < 0.4 and not recipe.alone
    # What is told stands with its message in one statement: what fails is not told.
    groups: list[tuple[str, str]] = []
    for statement in recipe.statements:
        if statement == ROWS:
            row = dice.choice(tables).insert(dice, 2) if dice.random() < 0.7 else tables[0].change(dice)
            groups.append((row, ""))
        elif statement in recipe.by_hand and not _is_untold(statement):
            told = [statement, ddl(statement)] if with_messages else [statement]
            groups.append((recipe.form(told), recipe.form([statement])))
        else:
            groups.append((statement, statement if statement in recipe.by_hand else ""))
    names = tuple(dict.fromkeys((*recipe.names, *(("message", "DDL") if with_messages else ()))))
    kind = f"{kind}{', told' if with_messages else ''}"
    options = {"superuser": True} if recipe.superuser else {}
    if together:
        sql = tuple(statement for statement, _ in groups if not statement.startswith((RUN, RECOPY, BOUND)))
        by_hand = tuple(done for _, done in groups if done)
        steps = [Step(do="transaction", sql=sql, kind=kind, names=names, by_hand=by_hand, options=options)]
        return _migrated_ahead(dice, steps) if recipe.is_ahead else steps
    steps = []
    for statement, done in groups:
        if statement == RUN:
            steps.append(Step(do="run"))
            continue
        if statement == BOUND:
            steps.append(Step(do="bound", options={"judged": True}))
            continue
        if statement.startswith(RECOPY):
            options_of_copy = {"tables": statement.removeprefix(RECOPY).split()}
            steps.append(Step(do="recopy", options=options_of_copy, kind="tables recopied"))
            continue
        by_hand = (done,) if done else ()
        steps.append(Step(do="source", sql=(statement,), kind=kind, names=names, by_hand=by_hand, options=options))
        if dice.random() < 0.15:
            steps.append(Step(do="run"))
    return _migrated_ahead(dice, steps) if recipe.is_ahead else steps


def _migrated_ahead(dice: random.Random, steps: list[Step]) -> list[Step]:
    """All that a person would do at the target is done there at once, before the pipeline comes to it."""
    by_hand = tuple(one for step in steps for one in step.by_hand)
    names = tuple(name for step in steps for name in step.names)
    done = Step(do="target", sql=by_hand, kind="migrated ahead", names=names)
    left = [replace(step, by_hand=()) for step in steps if step.do != "run"]
    place = dice.choice((0, len(left)))
    return [*left[:place], done, *left[place:]]


def _is_untold(statement: str) -> bool:
    """It cannot stand with its message in one transaction."""
    return statement.startswith(("VACUUM", "CLUSTER")) or "CONCURRENTLY" in statement

"""Names that pass on: exchanged by hand at the target, taken from a table that was left out, given before a copy; and
servers that fail over among alterations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tests.hunt.migrations import RECIPES, ROWS, RUN, Recipe, recopy_of
from tests.hunt.overlaps import any_recipe, chained
from tests.hunt.runs import LANE, RECOPY, abandoned, killed, stopped
from tests.hunt.servers import crash, promoted
from tests.hunt.step import Step
from tests.hunt.tables import Table
from tests.hunt.whole_tables import archive, rename_schema, rename_table, swap_tables

_FORMS: Final = ("PRIMARY KEY (id)", "PRIMARY KEY (id), UNIQUE (col_a)", "")
"""The keys of a pair of tables; without one, a row is known by all that it has."""


def _pair(dice: random.Random, one: str, other: str) -> tuple[str, ...]:
    """The statements that make two tables which could take each other's rows."""
    form = dice.choice(_FORMS)
    columns = f"id integer, col_a text, col_b text{', ' if form else ''}{form}"
    make = tuple(f"CREATE TABLE public.{name} ({columns})" for name in (one, other))
    full = tuple(f"ALTER TABLE public.{name} REPLICA IDENTITY FULL" for name in (one, other))
    return make if form else (*make, *full)


def _rows(dice: random.Random, name: str, first: int) -> list[str]:
    path = f"public.{name}"
    return [
        f"INSERT INTO {path} (id, col_a, col_b) SELECT i, '{name} ' || i, 'b' || i "
        f"FROM generate_series({first}, {first} + 5) i",
        *dice.sample(
            (
                f"UPDATE {path} SET col_a = col_a || '!' WHERE id % 3 = 0",
                f"UPDATE {path} SET col_b = col_a WHERE id % 2 = 0",
                f"DELETE FROM {path} WHERE id % 5 = 1",
                f"UPDATE {path} SET id = id + 1000 WHERE id % 4 = 3 AND id < 1000",
            ),
            2,
        ),
    ]


def _renamed(*names: str) -> str:
    """Tables renamed one after the other, in one transaction: each to the name behind its own."""
    pairs = zip(names[::2], names[1::2], strict=True)
    return "; ".join(f"ALTER TABLE public.{old} RENAME TO {new}" for old, new in pairs)


def _columns_renamed(path: str, *names: str) -> str:
    pairs = zip(names[::2], names[1::2], strict=True)
    return "; ".join(f"ALTER TABLE {path} RENAME COLUMN {old} TO {new}" for old, new in pairs)


def exchanged_by_hand(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Somebody gives tables or columns of the target each other's names, or makes them anew, ahead of rows to come; the
    source does the same later, or never.
    """
    number, kind = dice.randrange(1000), "exchanged by hand"
    one, other, path = f"one{number}", f"other{number}", f"public.one{number}"
    names = (one, other, f"spare{number}", "col_a", "col_b")
    spare = names[2]
    exchange, undo = dice.choice(
        (
            (_renamed(one, spare, other, one, spare, other),) * 2,
            (_renamed(one, spare, other, one, spare, other),) * 2,
            (_renamed(one, spare, other, one), _renamed(one, other, spare, one)),
            (_columns_renamed(path, "col_a", spare, "col_b", "col_a", spare, "col_b"),) * 2,
            (_columns_renamed(path, "col_a", spare, "col_b", "col_a", spare, "col_b"),) * 2,
            (f"{_renamed(one, spare)}; CREATE TABLE {path} (LIKE public.{spare} INCLUDING ALL)",
             f"DROP TABLE {path}; {_renamed(spare, one)}"),
            (f"{_renamed(one, spare)}; CREATE TABLE {path} (LIKE public.{spare} INCLUDING ALL); "
             f"INSERT INTO {path} SELECT * FROM public.{spare}", f"DROP TABLE {path}; {_renamed(spare, one)}"),
            (f"ALTER TABLE {path} ADD COLUMN {spare} text; UPDATE {path} SET {spare} = col_a; "
             f"ALTER TABLE {path} DROP COLUMN col_a; {_columns_renamed(path, spare, 'col_a')}", ""),
            (f"ALTER TABLE {path} DROP COLUMN col_b; ALTER TABLE {path} ADD COLUMN col_b text", ""),
        )
    )  # fmt: skip
    filled = Step(do="source", sql=(*_rows(dice, one, 1), *_rows(dice, other, 1)))
    to_come = Step(do=dice.choice(("source", "transaction")), sql=(*_rows(dice, one, 50), *_rows(dice, other, 50)))
    made = [Step(do="both", sql=_pair(dice, one, other), kind=kind, names=names), filled, *_run(dice, 0.8)]
    begun = dice.choice(([], [Step(do="capture")], _begun(stopped(dice, tables)), _begun(killed(dice, tables))))
    if undo == exchange and dice.random() < 0.3:
        later = Recipe(statements=[*exchange.split("; "), ROWS], names=[*names], is_ahead=True)
        return [*made, to_come, *begun, later, replace(to_come, sql=tuple(_rows(dice, one, 90)))]
    by_hand = Step(do="target", sql=(exchange,), kind=kind, names=names, by_hand=(undo,) if undo else ())
    if dice.random() < 0.3:
        options = {"do": "target", "of": "run", "place": dice.choice(sorted(LANE)), "call": dice.choice((1, 1, 2))}
        by_hand = replace(by_hand, do="meanwhile", options=options)
    behind = [replace(to_come, sql=(*_rows(dice, one, 90), *_rows(dice, other, 90))), *_run(dice, 0.5)]
    return [*made, to_come, *begun, by_hand, *dice.choice(([], behind)),
            Step(do="source", sql=(*_rows(dice, one, 130), *_rows(dice, other, 130)))]  # fmt: skip


def _run(dice: random.Random, share: float) -> list[Step]:
    return [Step(do="run")] if dice.random() < share else []


def _begun(steps: list[Step]) -> list[Step]:
    """A run that was begun, without the rows of other tables."""
    return [one for one in steps if one.do in ("stopped", "killed", "abandon")]


def name_left_out(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A followed table takes the name of one that the pipeline has left out, at once or by another name, and perhaps
    before a row of it was ever sent; the name is followed again before or behind that.
    """
    number, kind = dice.randrange(1000), "name left out"
    out, own, way = f"out{number}", f"own{number}", f"way{number}"
    names = (out, own, way, f"gone{number}", "exclude", "elsewhere")
    filled = Step(do="source", sql=(*_rows(dice, out, 1), *dice.choice(((), _rows(dice, own, 1)))))
    leave = Step(do="leave out", options={"table": f"public.{out}"}, kind=kind, names=names)
    take = Step(do="take in", options={"table": f"public.{out}"}, kind=kind, names=names)
    keep = Step(do="target", options={"keeps": [f"public.{out}"]}, kind=kind)
    go = dice.choice(
        (
            [f"DROP TABLE public.{out}"],
            [_renamed(out, f"gone{number}")],
            ["CREATE SCHEMA IF NOT EXISTS elsewhere", f"ALTER TABLE public.{out} SET SCHEMA elsewhere"],
        )
    )
    come: list[Step | Recipe] = [
        Recipe(statements=steps, names=[*names])
        for steps in dice.choice(
            (
                [[*go, _renamed(own, out)]],
                [[*go, _renamed(own, way)], [_renamed(way, out)]],
                [[*go, *dice.choice(([], [RUN])), f"CREATE TABLE public.{out} (LIKE public.{own} INCLUDING ALL)"]],
                [["; ".join((*go, _renamed(own, out)))]],
            )
        )
    ]
    for place in range(len(come), 0, -1):
        come[place:place] = _run(dice, 0.4)
    come.insert(dice.choice((0, len(come))), take)
    rows = Step(do="source", sql=tuple(_rows(dice, out, 60)))
    return [
        Step(do="both", sql=_pair(dice, out, own), kind=kind, names=names), filled, Step(do="run"), leave,
        *dice.choice(([], [replace(rows, sql=tuple(_rows(dice, out, 30)))])), Step(do="run"), keep,
        *dice.choice(([], [Step(do="source", sql=tuple(_rows(dice, own, 30)))])), *come, *_run(dice, 0.3), rows,
        Step(do="run"), replace(rows, sql=tuple(_rows(dice, out, 90))),
    ]  # fmt: skip


def _renames(dice: random.Random, tables: Sequence[Table]) -> Recipe:
    """Tables or columns that are called otherwise."""
    able = [table for table in tables if len(table.plain()) >= 2]
    if able and dice.random() < 0.3:
        table = dice.choice(able)
        recipe = RECIPES[dice.choice(("column renamed", "column names swapped", "column name passes on"))](dice, table)
        return replace(recipe, names=[*recipe.names, table.name])
    return dice.choice((rename_table, swap_tables, archive, rename_schema, chained))(dice, tables)


def recopied_behind(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Tables are copied anew behind names that no run has seen changed, with rows of before and behind to come; perhaps
    a copy was cut off before.
    """
    before = tuple(table.path for table in tables)
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables))
    cut = {"do": "die", "of": "recopy", "place": dice.choice(sorted(RECOPY)), "call": 1, "table": dice.choice(before)}
    begun = dice.choice(
        ([], [Step(do="run")], [Step(do="capture")], _begun(stopped(dice, tables)), _begun(abandoned(dice, tables)),
         [Step(do="meanwhile", options=cut, kind="die meanwhile")])
    )  # fmt: skip
    recipe = _renames(dice, tables)
    after = [table.path for table in tables if table.schema in ("public", "moved")]
    some = dice.sample(after or list(before), 1 if len(after) < 2 else dice.choice((1, 2)))
    former = [recopy_of(dice.choice(before))] if dice.random() < 0.2 else []
    statements = [*recipe.statements, *dice.choice(([], [ROWS])), *former, recopy_of(*some), *dice.choice(([], [RUN]))]
    again = [recopy_of(*some)] if dice.random() < 0.3 else []
    return [
        rows, *begun, replace(recipe, statements=[*statements, ROWS, *again], alone=True),
        Step(do="source", sql=tuple(table.change(dice) for table in tables), kind="recopied behind renames"),
    ]  # fmt: skip


def failed_over(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A standby takes over, or a server crashes, between alterations and the run that reads or makes them, and others
    follow.
    """
    kind = "failover over changes"
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables))]
    fall = [dice.choice((promoted, promoted, crash))(dice, tables)[0] for _ in range(dice.choice((1, 1, 2)))]
    begun = dice.choice(
        ([], [Step(do="capture")], _begun(stopped(dice, tables)), _begun(abandoned(dice, tables)),
         _begun(killed(dice, tables)), [Step(do="prepare")])
    )  # fmt: skip
    before = any_recipe(dice, tables)
    behind = dice.choice(([], [any_recipe(dice, tables)], [*rows, Step(do="run"), any_recipe(dice, tables)]))
    return [
        *rows, before, *dice.choice(([], rows)), *begun, *(replace(one, kind=kind) for one in fall),
        *behind, Step(do="source", sql=tuple(table.change(dice) for table in tables)),
    ]  # fmt: skip


NAMES: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "exchanged by hand": exchanged_by_hand, "name left out": name_left_out,
    "recopied behind renames": recopied_behind, "failover over changes": failed_over,
}  # fmt: skip

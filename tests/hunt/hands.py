"""Hands at the target: what people do there to roles, keys, branches, positions and columns, also in mid-commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tests.hunt.events import acting_target
from tests.hunt.migrations import ROWS, RUN, Recipe
from tests.hunt.odd_targets import guarded, odd_type, writing_target
from tests.hunt.runs import LANE
from tests.hunt.servers import rights
from tests.hunt.step import Step
from tests.hunt.tables import Column, Table

NEED_BRANCHES: Final = ("branches ended",)
"""Kinds that say little without `consistency=epoch` and `epoch_protocol=two_phase`."""
_COMMIT: Final = ("between staging and commit", "inside the target's transaction", "at a barrier")


def replica_by_default(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """The target's role is a replica by default: triggers and foreign keys act, or do not, as nobody thinks."""
    kind, role = "role a replica", dice.choice(("plain", "postgres"))
    acting = [one for one in dice.choice((acting_target, writing_target))(dice, tables) if one.do == "target"]
    table = dice.choice(tables)
    return [
        Step(do="target", sql=(f"ALTER ROLE {role} SET session_replication_role = replica",), kind=kind),
        *(replace(one, sql=tuple(text.replace("ENABLE TRIGGER", "ENABLE REPLICA TRIGGER") for text in one.sql))
          for one in dice.choice((acting, []))),
        Step(do="source", sql=tuple(table.change(dice) for _ in range(3))),
        *dice.choice(([], tied(dice, tables))),
    ]  # fmt: skip


def tied(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A foreign key that the target alone has acts on replicas' rows, too."""
    able = [
        one for one in tables
        if one.create[0].endswith("PRIMARY KEY (id))") and one.schema == "public" and one.column("id").is_sent
    ]  # fmt: skip
    if not able:
        return [*acting_target(dice, tables)]
    parent, number = dice.choice(able), dice.randrange(1000)
    child, key = f"public.child{number}", f"up{number}"
    make = f"CREATE TABLE {child} (id integer PRIMARY KEY, r integer)"
    action = dice.choice(("ON DELETE CASCADE ON UPDATE CASCADE", "ON DELETE SET NULL", "ON DELETE CASCADE"))
    refer = f"ALTER TABLE {child} ADD CONSTRAINT {key} FOREIGN KEY (r) REFERENCES {parent.path} (id) {action} NOT VALID"
    enable = (
        f"DO $$ DECLARE r record; BEGIN FOR r IN SELECT t.tgname, t.tgrelid::regclass AS at FROM pg_trigger t "
        f"JOIN pg_constraint c ON c.oid = t.tgconstraint WHERE c.conname = '{key}' LOOP "
        f"EXECUTE format('ALTER TABLE %s ENABLE {{}} TRIGGER %I', r.at, r.tgname); END LOOP; END $$"
    )
    names = (f"child{number}", parent.name, key, "foreign key")
    kind = "foreign key for replicas"
    rows = (
        f"INSERT INTO {child} SELECT row_number() OVER (), id FROM {parent.path}",
        f"DELETE FROM {parent.path} WHERE {parent.some(dice)}",
        f"UPDATE {parent.path} SET id = id + 40000 WHERE {parent.some(dice)}",
    )
    always = dice.choice(("ALWAYS", "ALWAYS", "REPLICA"))
    return [
        Step(do="both", sql=(make,), kind=kind, names=names),
        Step(do="source", sql=rows[:1]), Step(do="run"),
        Step(do="target", sql=(refer, enable.format(always)), kind=kind, names=names,
             by_hand=(f"ALTER TABLE {child} DROP CONSTRAINT {key}",)),
        Step(do=dice.choice(("source", "transaction")), sql=tuple(dice.sample(rows[1:], 2))),
    ]  # fmt: skip


def branches_ended(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A lane is killed between branches and their decision, and somebody ends what was prepared."""
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(4)))
    kind, how = "branches ended", dice.choice(("COMMIT", "COMMIT", "ROLLBACK"))
    options = {"of": "lane", "place": dice.choice(_COMMIT), "call": dice.choice((1, 1, 2)), "signal": "KILL"}
    names = ("branch", "by hand") if how == "COMMIT" else ()
    return [
        Step(do="run"), rows, Step(do="killed", options=options, kind="lane killed"),
        Step(do="end branches", options={"how": how, "count": dice.choice((1, 1, 8))}, kind=kind, names=names),
        *dice.choice(([], [rows])),
    ]  # fmt: skip


def altered_meanwhile(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """The target is altered while a unit is between its staging and its commit."""
    kind = "target altered meanwhile"
    if dice.random() < 0.5:
        made, steps = _retyped(dice, tables)
    else:
        made, steps = [], dice.choice((acting_target, writing_target, odd_type, rights))(dice, tables)
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables))]
    options = {"do": "target", "of": "run", "place": dice.choice(sorted(LANE)), "call": dice.choice((1, 1, 2))}
    during = [replace(one, do="meanwhile", options=options, kind=kind) if one.do == "target" else one for one in steps]
    return [*made, *rows, *during]


def _retyped(dice: random.Random, tables: Sequence[Table]) -> tuple[list[Step | Recipe], list[Step]]:
    """A column of numbers becomes one of another type, which stores others by assignment."""
    table, name = dice.choice(tables), f"n{dice.randrange(1000)}"
    kind, value = dice.choice(
        (("numeric", "1.5"), ("loose", "1.5"), ("text", "'abcdef'"), ("timestamp", "'2024-02-29 1:00'"))
    )
    other = {"text": ("varchar(3)", "char(9)"), "timestamp": ("date", "timestamptz")}.get(kind, ("integer", "whole"))
    retype = f"ALTER TABLE {table.path} ALTER COLUMN {name} TYPE {{0}} USING {name}::{{0}}"
    add = f"ALTER TABLE {table.path} ADD COLUMN {name} {kind}"
    table.columns.append(Column(name=name, type_name=kind))
    made = Step(
        do="both", kind="target altered meanwhile", names=(table.name, name),
        sql=("CREATE DOMAIN loose AS numeric", "CREATE DOMAIN whole AS integer", add),
    )  # fmt: skip
    row = f"{table.insert(dice, 2)}; UPDATE {table.path} SET {name} = {value}"
    alter = Step(
        do="target",
        sql=(guarded(table, name, retype.format(dice.choice(other))),),
        names=(table.name, name),
        by_hand=(retype.format(kind),),
    )
    return [made, Step(do="run")], [Step(do="source", sql=(row,)), alter]


def there_already(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A column that the source adds is there at the target, with another type or default."""
    table, name = dice.choice(tables), f"n{dice.randrange(1000)}"
    kind, value = dice.choice(
        (("boolean", "true"), ("char(5)", "'ab'"), ("text", "'5'"), ("integer", "5"), ("timestamptz", "'2024-02-29'"),
         ("double precision", "0.1"), ("small", "3"))
    )  # fmt: skip
    here = dice.choice((f"{kind} DEFAULT {value}", f"{kind} NOT NULL DEFAULT {value}", kind))
    there = dice.choice(("text", "text DEFAULT 'x'", "integer DEFAULT 7", "varchar(9)", kind))
    alter = f"ALTER TABLE {table.path}"
    table.columns.append(Column(name=name, type_name=kind, nullable="NOT NULL" not in here))
    drop = dice.choice(([], [ROWS, f"{alter} ALTER COLUMN {name} DROP DEFAULT"]))
    return [
        Step(do="run"),
        Step(do="target", sql=(f"{alter} ADD COLUMN {name} {there}",), kind="column there already",
             names=(table.name, name), by_hand=(f"{alter} DROP COLUMN {name}",)),
        Recipe(statements=[f"{alter} ADD COLUMN {name} {here}", *drop, ROWS, *dice.choice(([], [RUN]))],
               names=[table.name, name]),
    ]  # fmt: skip


def positions_lost(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """Some of the pipeline's own rows at the target are gone."""
    kind = "positions lost"
    what = dice.choice(
        (
            "DELETE FROM parallel_apply.position",
            "DELETE FROM parallel_apply.position WHERE channel = 0",
            "DELETE FROM parallel_apply.pipeline",
            "DROP SCHEMA parallel_apply CASCADE",
        )
    )
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(2)))
    return [
        rows,
        Step(do="run"),
        # Without any of them, the run that comes takes itself for the first one.
        Step(
            do="target",
            sql=(what,),
            kind=kind,
            names=("positions", "does not hold", "is to find none", "is there already"),
        ),
        *dice.choice(([], [rows])),
    ]


HANDS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "role a replica": replica_by_default, "foreign key for replicas": tied, "branches ended": branches_ended,
    "target altered meanwhile": altered_meanwhile, "column there already": there_already,
    "positions lost": positions_lost,
}  # fmt: skip

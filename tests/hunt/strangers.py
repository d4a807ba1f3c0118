"""Tables and publications that are something else for a while: attached, published, left out, altered, renamed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.migrations import BY_TOOL, ROWS, RUN, Recipe, recopy_of
from tests.hunt.partitioning import sent
from tests.hunt.step import Step
from tests.hunt.tables import Table
from tests.hunt.whole_tables import truncate

_PUBLICATION: Final = "parallel_apply_p"
_OF_PARTITIONS: Final = '"parallel_apply_p.parts"'
_ALL: Final = "insert, update, delete, truncate"


def attached_for_a_while(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A followed table of its own is a partition of another one while rows are written through both."""
    table = next((one for one in tables if one.leaves and "BY RANGE" in one.create[0] and one.schema == "public"), None)
    if table is None:
        return [truncate(dice, tables)]
    own, columns = f"public.own{dice.randrange(1000)}", sent(table)
    rows = f"INSERT INTO {{}} ({columns}) SELECT {columns.replace('id', 'id - 3000', 1)} FROM {table.path} "
    rows += "WHERE id BETWEEN {} AND {}"
    own_rows, through = rows.format(own, 1001, 1500), rows.format(table.path, 1501, 1900)
    few = "INSERT INTO {} (id) SELECT i FROM generate_series({}, {}) i ON CONFLICT DO NOTHING"
    written = dice.sample(
        (
            few.format(table.path, -1990, -1980),
            few.format(own, -1970, -1960),
            f"UPDATE {table.path} SET id = id - 1 WHERE id BETWEEN -1970 AND -1000",
            f"DELETE FROM {table.path} WHERE id BETWEEN -1985 AND -1965",
            through,
        ),
        2,
    )
    behind = dice.choice(([], [few.format(own, -1890, -1885)], [f"DELETE FROM {own} WHERE id % 2 = 0"]))
    runs = [dice.choice(([], [], [RUN])) for _ in range(3)]
    return [
        Recipe(
            statements=[
                f"CREATE TABLE {own} (LIKE {table.path} INCLUDING ALL)",
                *dice.choice(([], [few.format(own, -1999, -1995)], [own_rows])), RUN, *runs[0],
                f"ALTER TABLE {table.path} ATTACH PARTITION {own} FOR VALUES FROM (-2000) TO (-1000)", *runs[1],
                *written, *runs[2], f"ALTER TABLE {table.path} DETACH PARTITION {own}", *behind,
            ],
            names=[table.name, own.partition(".")[2]], alone=True,
        )
    ]  # fmt: skip


def published_for_a_while(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A table that nobody follows, and that the target has with rows of its own."""
    table, stranger = dice.choice(tables), f"elsewhere.stranger{dice.randrange(1000)}"
    make = ("CREATE SCHEMA IF NOT EXISTS elsewhere", f"CREATE TABLE {stranger} (id integer PRIMARY KEY)")
    alter = f"{BY_TOOL}ALTER PUBLICATION {_PUBLICATION}"
    rows = [
        f"INSERT INTO {stranger} VALUES ({dice.randrange(1, 9)})",
        f"{table.insert(dice, 1)}; INSERT INTO {stranger} VALUES (11); {table.insert(dice, 1)}",
        f"UPDATE {stranger} SET id = 7 WHERE id > 10",
        f"TRUNCATE {stranger}, {table.path}",
        f"BEGIN; TRUNCATE {stranger}; {table.change(dice)}; INSERT INTO {stranger} VALUES (12); COMMIT",
    ]
    kept = {"keeps": [stranger]}
    grants = "GRANT USAGE ON SCHEMA elsewhere TO plain", "GRANT ALL ON ALL TABLES IN SCHEMA elsewhere TO plain"
    return [
        Step(do="source", sql=make, kind="stranger published"),
        Step(do="target", sql=(*make, f"INSERT INTO {stranger} VALUES (7)", *grants), kind="stranger published",
             options=kept),
        Recipe(
            statements=[
                f"{alter} ADD TABLE {stranger}", *dice.sample(rows, dice.choice((1, 3))), *dice.choice(([], [RUN])),
                f"{alter} DROP TABLE {stranger}", ROWS,
            ],
            names=["publication", stranger.partition(".")[2], table.name], alone=True,
        ),
    ]  # fmt: skip


def left_out(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """A followed table is excluded, written to, published by somebody for a while, and perhaps followed again."""
    able = [table for table in tables if not table.leaves and not table.more]
    if not able:
        return published_for_a_while(dice, tables)
    table = dice.choice(able)
    alter = f"{BY_TOOL}ALTER PUBLICATION {_PUBLICATION}"
    names = (table.name, "publication", "exclude")
    kind = "left out"
    rows = tuple(table.change(dice) for _ in range(2))
    published = [
        Step(do="source", sql=(f"{alter} ADD TABLE {table.path}",), kind=kind, names=names),
        Step(do="source", sql=rows),
        *dice.choice(([], [Step(do="run")])),
        Step(do="source", sql=(f"{alter} DROP TABLE {table.path}",), kind=kind, names=names),
    ]
    back = [Step(do="take in", options={"table": table.path}, kind=kind, names=names), Step(do="run")]
    return [
        Step(do="run"),
        Step(do="leave out", options={"table": table.path}, kind=kind, names=names),
        Step(do="source", sql=rows),
        Step(do="run"),
        Step(do="target", options={"keeps": [table.path]}, kind=kind),
        *dice.choice(([], published)),
        Step(do="run"),
        *dice.choice(([], back)),
    ]


def publication(dice: random.Random, tables: Sequence[Table]) -> list[Step | Recipe]:
    """One of the pipeline's own publications is altered or renamed, and back; perhaps another table is recopied."""
    table = dice.choice(tables)
    others = [one.path for one in tables if one is not table]
    parts = any(one.leaves for one in tables) and dice.random() < 0.6
    name = _OF_PARTITIONS if parts else _PUBLICATION
    alter = f"{BY_TOOL}ALTER PUBLICATION {{}}"
    publish = alter.format(name) + " SET (publish = '{}')"
    there, back = dice.choice(
        (
            (publish.format("insert"), publish.format("truncate" if parts else _ALL)),
            (publish.format("insert, update"), publish.format("truncate" if parts else _ALL)),
            (f"{alter.format(name)} RENAME TO lent", f"{alter.format('lent')} RENAME TO {name}"),
            (f"{alter.format(name)} DROP TABLE {table.path}", f"{alter.format(name)} ADD TABLE {table.path}"),
            (f"{alter.format(name)} SET TABLE {table.path} WHERE (false)", f"{alter.format(name)} SET TABLE "
             f"{', '.join(one.path for one in tables)}"),
        )
    )  # fmt: skip
    parent = next((one for one in tables if one.leaves), None)
    written = [f"TRUNCATE public.{parent.leaves[0]}"] if parent is not None and dice.random() < 0.7 else [ROWS]
    written += dice.choice(([], [f"UPDATE {table.path} SET {table.columns[-1].name} = DEFAULT"], [ROWS]))
    seen = dice.choice(([], [], [RUN])), dice.choice(([], [RUN]))
    between = [recopy_of(dice.choice(others))] if others and dice.random() < 0.4 else []
    return [
        Recipe(
            statements=[there, *written, *seen[0], back, *between, *seen[1], ROWS],
            names=[*(one.name for one in tables), "publication"], alone=True,
        )
    ]  # fmt: skip


STRANGERS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step | Recipe]]]] = {
    "attached for a while": attached_for_a_while, "stranger published": published_for_a_while, "left out": left_out,
    "publication and back": publication,
}  # fmt: skip

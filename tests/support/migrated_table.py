"""The table `t` whose definition tests change: plain or partitioned, with rows, followed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest

from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from tests.support.rig import Rig, execute
from tests.support.variants import GATED

COMPUTED: Final = (
    "CREATE TABLE t (id integer PRIMARY KEY, a text, b integer, g integer GENERATED ALWAYS AS (b * 2) STORED)"
)
PLAIN: Final = ("CREATE TABLE t (id integer PRIMARY KEY, a text, b integer)",)
PARTED: Final = (
    "CREATE TABLE t (id integer PRIMARY KEY, a text, b integer) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (50)",
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (50) TO (10000)",
)
ROWS: Final = "INSERT INTO t (id, a, b) SELECT i, 'a' || i, i FROM generate_series(1, 60) i"


def either_kind(recipes: Iterable[str], *, seldom: Collection[str] = (), gated: Collection[str] = ()) -> list[Any]:
    """Pairs of a recipe and the statements that make the table, plain and partitioned; in `make test` every second one
    of either kind, and none of `seldom` and of `gated`, of which `.ci/run` plays a share.
    """
    return [
        pytest.param(
            recipe,
            tables,
            id=f"{recipe}-{kind}",
            marks=pytest.mark.long if is_long else GATED if recipe in gated else (),
        )
        for number, recipe in enumerate(recipes)
        for kind, tables in (("plain", PLAIN), ("partitioned", PARTED))
        for is_long in ((number + (kind == "plain")) % 2 == 1 or recipe in seldom,)
    ]


def begin(rig: Rig, *tables: str) -> None:
    """Make the table on both sides, follow it, and apply its rows."""
    rig.both(*tables)
    rig.prepare()
    rig.write(ROWS)
    rig.run()


def recopied(rig: Rig, *at_target: str, table: str = "t") -> Rig:
    """Do what the hint says."""
    execute(rig.target_dsn, *at_target)
    recopy_tables(rig.config, rig.source, rig.target, [("public", table)], report=lambda progress: None)
    return rig


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison

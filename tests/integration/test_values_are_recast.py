"""A change of type by an expression: what it makes of the values is not sent."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a varchar(20), b integer, n numeric(6,2))"

FOLLOWED = {
    "a type that keeps all values": ["ALTER TABLE t ALTER a TYPE text, ALTER n TYPE numeric(9,2)"],
    "a rewrite before": ["VACUUM FULL t", "SELECT 'run'", "ALTER TABLE t ALTER a TYPE text"],
    "a rewrite in a later run": ["ALTER TABLE t ALTER a TYPE text", "SELECT 'run'", "VACUUM FULL t", "SELECT 'run'"],
    "a rewrite that another type explains": ["ALTER TABLE t ALTER b TYPE bigint, ALTER a TYPE text"],
}  # fmt: skip

RECAST = {
    "to text": ["ALTER TABLE t ALTER a TYPE text USING 'was ' || a"],
    "in a quiet run": ["ALTER TABLE t ALTER a TYPE varchar(30) USING 'was ' || a", "SELECT 'run'"],
    "under a new name": ["ALTER TABLE t RENAME a TO c", "ALTER TABLE t ALTER c TYPE varchar USING upper(c)"],
    "a number": ["ALTER TABLE t ALTER n TYPE numeric(8,2) USING n * 2", "SELECT 'run'", "VACUUM FULL t"],
}  # fmt: skip


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both(_TABLE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' || i, i, i FROM generate_series(1, 60) i")
    rig.run()
    return rig


def write(rig: Rig, statements: list[str]) -> None:
    """With a run wherever they say so, and rows behind them."""
    for statement in statements:
        if statement == "SELECT 'run'":
            rig.run()
        else:
            rig.write(statement)
    rig.write("INSERT INTO t (id) VALUES (100)", "DELETE FROM t WHERE id < 9")


@pytest.mark.parametrize("recipe", FOLLOWED)
def test_a_type_that_keeps_all_values_is_followed(rig: Rig, recipe: str) -> None:
    write(rig, FOLLOWED[recipe])
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize("recipe", RECAST)
def test_a_rewrite_where_the_type_needs_none_stops_the_run(rig: Rig, recipe: str) -> None:
    write(rig, RECAST[recipe])
    with pytest.raises(FatalError, match=r"became .*, and the table was rewritten.*(?s:.*)recopy --table public\.t"):
        rig.run()
    column = "n" if "numeric" in RECAST[recipe][0] else "a"
    rename = ["ALTER TABLE t RENAME a TO c"] if "RENAME" in RECAST[recipe][0] else []
    types = rig.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass"
        f" AND attnum = {4 if column == 'n' else 2}",
        side="source",
    )
    execute(rig.target_dsn, *rename, f"ALTER TABLE t ALTER {types[0][0]} TYPE {types[0][1]}")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    rig.write("DELETE FROM t WHERE id = 11")
    rig.run()
    assert rig.comparison().equal

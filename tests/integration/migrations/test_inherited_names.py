"""A parent's column that gets the name which a child's own one had: the child's values stay, whatever comes first."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

_TABLES = (
    "CREATE TABLE parent (id integer PRIMARY KEY, a integer)",
    "CREATE TABLE child (b integer, PRIMARY KEY (id)) INHERITS (parent)",
)
FIRST = {
    "parent": ("INSERT INTO parent VALUES (3, 3)", "INSERT INTO child (id, b) VALUES (4, 4)"),
    "child": ("INSERT INTO child (id, b) VALUES (4, 4)", "INSERT INTO parent VALUES (3, 3)"),
}
_OFTEN = {("RENAME b TO was_b", "parent", DdlPolicy.APPLY)}


def begin(rig: Rig, ddl: DdlPolicy) -> Rig:
    rig.both(*_TABLES)
    rig = rig.having(ddl=ddl)
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 1)", "INSERT INTO child VALUES (2, 10, 20)")
    rig.run()
    return rig


def recopy(rig: Rig) -> None:
    recopy_tables(rig.config, rig.source, rig.target, [("public", "child")], report=lambda progress: None)


def stopped(rig: Rig) -> str:
    """Run it, and return what the red run says."""
    try:
        rig.run()
    except FatalError as error:
        return str(error)
    return ""


def follow(rig: Rig) -> None:
    """Run until it is green, as the hints say."""
    for _ in range(3):
        if not (told := stopped(rig)):
            return
        found = re.search(r"\((ALTER TABLE .*?)\), then", told)
        assert found is not None, told
        execute(rig.target_dsn, *found[1].split("; "))


@pytest.mark.parametrize(
    ("change", "first", "ddl"),
    [
        pytest.param(change, first, ddl, marks=() if (change, first, ddl) in _OFTEN else GATED)
        for change in ("RENAME b TO was_b", "DROP b")
        for first in FIRST
        for ddl in (DdlPolicy.REFUSE, DdlPolicy.APPLY)
    ],
)
def test_values_of_a_childs_own_column_stay(rig: Rig, change: str, first: str, ddl: DdlPolicy) -> None:
    rig = begin(rig, ddl)
    rig.write(f"ALTER TABLE child {change}", "ALTER TABLE parent RENAME a TO b", *FIRST[first])
    follow(rig)
    assert rig.comparison().equal
    rows = "SELECT to_jsonb(child) FROM child ORDER BY id"
    assert rig.rows(rows) == rig.rows(rows, side="source")


@gated
def test_a_column_that_the_target_alone_has_in_a_child_is_left_to_a_person(rig: Rig) -> None:
    rig = begin(rig, DdlPolicy.APPLY)
    execute(rig.target_dsn, "CREATE TABLE alone (b integer) INHERITS (parent)", "INSERT INTO alone VALUES (7, 7, 7)")
    rig.write("ALTER TABLE child DROP b", "ALTER TABLE parent RENAME a TO b", *FIRST["parent"])
    assert "In public.alone a column of the target's own has the new name" in stopped(rig)
    follow(rig)
    assert rig.comparison().equal
    assert rig.rows("SELECT b, b_in_the_way FROM alone") == [(7, 7)]


@gated
def test_a_column_that_a_childs_child_had_with_it_makes_way(rig: Rig) -> None:
    rig.both(*_TABLES, "CREATE TABLE below (PRIMARY KEY (id)) INHERITS (child)")
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO child VALUES (2, 10, 20)", "INSERT INTO below VALUES (3, 10, 20)")
    rig.run()
    rig.write("ALTER TABLE child DROP b", "ALTER TABLE parent RENAME a TO b", "INSERT INTO child VALUES (4, 4)")
    follow(rig)
    rig.write("INSERT INTO parent VALUES (5, 5)", "INSERT INTO below VALUES (6, 6)")
    follow(rig)
    assert rig.comparison().equal
    rows = "SELECT to_jsonb(child) FROM child ORDER BY id"
    assert rig.rows(rows) == rig.rows(rows, side="source")


@gated
@pytest.mark.parametrize("first", FIRST)
def test_a_column_that_the_parent_adds_under_the_former_name_of_a_childs(rig: Rig, first: str) -> None:
    rig = begin(rig, DdlPolicy.APPLY)
    rig.write("ALTER TABLE child RENAME b TO was_b", "ALTER TABLE parent ADD b integer DEFAULT 7", *FIRST[first])
    if first == "parent":
        told = stopped(rig)
        assert "--table public.child" in told, told
        with pytest.raises(FatalError) as caught:
            recopy(rig)
        found = re.search(r"Run (ALTER TABLE \S+ ADD COLUMN \S+ \w+)", str(caught.value))
        assert found is not None, caught.value
        execute(rig.target_dsn, found[1])
        recopy(rig)
    rig.run()
    assert rig.comparison().equal

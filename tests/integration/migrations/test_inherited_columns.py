"""Columns that a table has from another one, by inheritance: whatever comes first, the hint leads to green."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError, TargetError
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

_TABLES = (
    "CREATE TABLE parent (id integer PRIMARY KEY, a text, b integer)",
    "CREATE TABLE child (c integer, PRIMARY KEY (id)) INHERITS (parent)",
)
CHANGES = {
    "dropped": "ALTER TABLE parent DROP b",
    "renamed": "ALTER TABLE parent RENAME a TO x",
    "added": "ALTER TABLE parent ADD d integer",
    "retyped": "ALTER TABLE parent ALTER b TYPE bigint",
}
FIRST = {
    "child": ["INSERT INTO child (id, c) VALUES (3, 3)", "INSERT INTO parent (id) VALUES (4)"],
    "parent": ["INSERT INTO parent (id) VALUES (4)", "INSERT INTO child (id, c) VALUES (3, 3)"],
}


_OFTEN = {("renamed", "child", "apply")}


@pytest.mark.parametrize(
    ("change", "first", "ddl"),
    [
        pytest.param(change, first, ddl, marks=() if (change, first, ddl) in _OFTEN else pytest.mark.long)
        for change in CHANGES
        for first in FIRST
        for ddl in (DdlPolicy.REFUSE, DdlPolicy.APPLY)
    ],
)
def test_a_change_of_a_parent_is_followed_or_its_statement_is_named(
    rig: Rig, change: str, first: str, ddl: DdlPolicy
) -> None:
    rig.both(*_TABLES)
    install(rig.source_dsn)
    rig = rig.having(ddl=ddl)
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 'x', 1)", "INSERT INTO child VALUES (2, 'y', 2, 2)")
    rig.run()
    rig.write(CHANGES[change], *FIRST[first])
    for _ in range(2):
        told = stopped(rig)
        if told is None:
            break
        # Under APPLY only what the parent's own definition would bring, were it there first.
        assert ddl is DdlPolicy.REFUSE or (first == "child" and "has the column from public.parent" in told)
        found = re.search(r"\((ALTER TABLE .*)\), then run again", told)
        assert found is not None, told
        execute(rig.target_dsn, *found[1].split("; "))
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize(
    ("rows", "doubted"), [("parent", ["parent", "child"]), pytest.param("child", ["child"], marks=GATED)]
)
def test_what_a_parents_retyping_rewrites_is_copied_as_the_hints_say(rig: Rig, rows: str, doubted: list[str]) -> None:
    rig.both("CREATE TABLE parent (id integer PRIMARY KEY, a jsonb)", _TABLES[1])
    rig.prepare()
    rig.write(f"INSERT INTO {rows} VALUES (1, '7')", "INSERT INTO child VALUES (2, '8', 2)")
    rig.run()
    rig.write("ALTER TABLE parent ALTER a TYPE text USING 'was ' || a::text")
    told = stopped(rig) or ""
    names = [f"public.{name}" for name in doubted]
    assert re.findall(r"--table ([\w.]+)", told.partition("Only where")[0]) == names, told
    with pytest.raises(TargetError) as caught:
        recopy(rig, names)
    found = re.search(r"Run (ALTER TABLE .*) at the target; then run again", str(caught.value))
    assert found is not None, caught.value
    execute(rig.target_dsn, found[1])
    recopy(rig, names)
    rig.run()
    rig.write("INSERT INTO parent VALUES (3, 'new')", "INSERT INTO child VALUES (4, 'new', 4)")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_column_that_the_parent_alone_dropped_stays_in_the_child(rig: Rig) -> None:
    rig.both(*_TABLES)
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 'x', 1)", "INSERT INTO child VALUES (2, 'y', 2, 2)")
    rig.run()
    rig.write("ALTER TABLE ONLY parent DROP b", "INSERT INTO parent VALUES (3, 'z')")
    rig.run()
    assert rig.rows("SELECT b FROM child") == [(2,)]
    assert rig.comparison().equal


@gated
def test_a_child_whose_column_the_parents_hint_retypes_is_copied_as_well(rig: Rig) -> None:
    rig.both("CREATE TABLE parent (id integer PRIMARY KEY, a timestamptz)", _TABLES[1])
    install(rig.source_dsn)
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, now())", "INSERT INTO child VALUES (2, now(), 2)")
    rig.run()
    rig.write(
        "SET timezone = 'Asia/Tokyo'",
        "ALTER TABLE parent ALTER a TYPE text",
        "INSERT INTO parent VALUES (3, 'new')",
        "INSERT INTO child VALUES (4, 'new', 4)",
    )
    told = stopped(rig) or ""
    found = re.search(r"Run (ALTER TABLE .*) at the target; then", told)
    assert found is not None, told
    execute(rig.target_dsn, found[1])
    recopy(rig, re.findall(r"--table ([\w.]+)", told))
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, (told, comparison)


@gated
def test_rows_of_a_parent_keep_their_values_where_its_child_gets_what_older_rows_have(rig: Rig) -> None:
    rig.both("CREATE TABLE parent (id integer PRIMARY KEY, a text)", _TABLES[1])
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO child VALUES (2, 'x', 2)")
    rig.run()
    execute(rig.target_dsn, "ALTER TABLE parent ADD d integer")
    rig.write("ALTER TABLE parent ADD d text DEFAULT 'n/a'", "INSERT INTO parent VALUES (3, 'y', '5')")
    rig.write("INSERT INTO child (id, d) VALUES (4, '7')")
    told = stopped(rig) or ""
    found = re.search(r"(ALTER TABLE \"public\".* USING 'n/a'::text)", told)
    assert found is not None, told
    execute(rig.target_dsn, found[1])
    if names := re.findall(r"--table ([\w.]+)", told):
        recopy(rig, names)
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, (told, comparison)


def recopy(rig: Rig, names: list[str]) -> None:
    paths = [(schema, table) for schema, _, table in (name.partition(".") for name in names)]
    recopy_tables(rig.config, rig.source, rig.target, paths, report=lambda progress: None)


def stopped(rig: Rig) -> str | None:
    """Run it, and return what the red run says."""
    try:
        rig.run()
    except FatalError as error:
        return str(error)
    return None


def test_a_column_that_the_source_computes_is_replaced_where_the_target_inherits_it_from(rig: Rig) -> None:
    computed = "CREATE TABLE parent (id integer PRIMARY KEY, a integer, g integer GENERATED ALWAYS AS (a * 2) STORED)"
    rig.both(computed, _TABLES[1])
    execute(rig.target_dsn, "ALTER TABLE parent DROP g, ADD g integer")
    with pytest.raises(FatalError) as caught:
        rig.prepare()
    found = re.search(r'(ALTER TABLE "public"\."parent" DROP COLUMN .*?STORED)', str(caught.value))
    assert found is not None, caught.value
    assert 'TABLE "public"."child"' not in str(caught.value)
    execute(rig.target_dsn, found[1])
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 1)", "INSERT INTO child (id, a, c) VALUES (2, 2, 2)")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_column_that_the_target_alone_computes_is_copied_in_all_tables_that_lose_it(rig: Rig) -> None:
    rig.both("CREATE TABLE parent (id integer PRIMARY KEY, a integer, g integer)", _TABLES[1])
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 1, 3)", "INSERT INTO child (id, a, g) VALUES (2, 2, 4)")
    rig.run()
    execute(
        rig.target_dsn,
        "ALTER TABLE parent DROP g",
        "ALTER TABLE parent ADD g integer GENERATED ALWAYS AS (a * 2) STORED",
    )
    rig.write("INSERT INTO child (id, a, g) VALUES (5, 5, 5)")
    told = stopped(rig) or ""
    found = re.search(r'Run (ALTER TABLE "public"\."parent" DROP COLUMN .*?) at the target', told)
    assert found is not None, told
    execute(rig.target_dsn, found[1])
    recopy(rig, re.findall(r"--table ([\w.]+)", told))
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, (told, comparison)

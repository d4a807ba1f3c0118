"""A table that is copied anew behind alterations of a parent, which no row of the parent has told yet."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

SIDES = "source", "target"
_TABLES = (
    "CREATE TABLE parent (id integer PRIMARY KEY, a text, b text)",
    "CREATE TABLE child (c text, PRIMARY KEY (id)) INHERITS (parent)",
    "CREATE TABLE beside (c text, PRIMARY KEY (id)) INHERITS (parent)",
    "CREATE TABLE below (PRIMARY KEY (id)) INHERITS (child)",
)
CHANGES = {
    "renamed, and another one added": ("RENAME a TO z", "ADD a text"),
    "exchanged": ("RENAME a TO t", "RENAME b TO a", "RENAME t TO b"),
    "dropped, and another one renamed": ("DROP b", "RENAME a TO b"),
    "passed on": ("DROP a", "RENAME b TO a", "ADD b text"),
}


def begin(rig: Rig) -> Rig:
    rig.both(*_TABLES)
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write(
        *(f"INSERT INTO {name} (id, a, b) VALUES (1, 'a', 'b')" for name in ("parent", "child", "beside", "below"))
    )
    rig.run()
    return rig


def recopy(rig: Rig, *names: str) -> list[str]:
    """Copy tables anew, as the hints say; return the statements that these had a person run."""
    run: list[str] = []
    for _ in range(4):
        try:
            recopy_tables(rig.config, rig.source, rig.target, [("public", one) for one in names], report=lambda _: None)
            return run
        except FatalError as error:
            told = str(error)
        found = re.search(r"Run (ALTER TABLE .*?)(?: at the target, then|\.$|; then)", told)
        assert found is not None, told
        run += found[1].split("; ")
        execute(rig.target_dsn, *found[1].split("; "))
    raise AssertionError(run)


def follow(rig: Rig) -> None:
    """Run until it is green, as the hints say."""
    for _ in range(4):
        try:
            rig.run()
            return
        except FatalError as error:
            told = str(error)
        if names := re.findall(r"--table public\.(\w+)", told):
            recopy(rig, *names)
            continue
        found = re.search(r"\((ALTER TABLE .*?)\), then", told)
        assert found is not None, told
        execute(rig.target_dsn, *found[1].split("; "))
    raise AssertionError(told)


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


def assert_copied(rig: Rig) -> None:
    """A column that was moved out of the way may stay in the copy."""
    here, there = (rig.rows("SELECT to_jsonb(child) FROM ONLY child ORDER BY id", side=side) for side in SIDES)
    assert here == [({name: row[name] for name in here[0][0]},) for (row,) in there]


@pytest.mark.parametrize(
    "change", [pytest.param(change, marks=() if change == "exchanged" else GATED) for change in CHANGES]
)
def test_a_copy_keeps_its_values_when_a_row_of_the_parent_comes(rig: Rig, change: str) -> None:
    rig = begin(rig)
    rig.write(f"BEGIN; {'; '.join(f'ALTER TABLE parent {one}' for one in CHANGES[change])}; COMMIT")
    rig.write("INSERT INTO child (id) VALUES (2)")
    with pytest.raises(FatalError, match="recopy"):
        rig.run()
    assert all('"public"."parent" RENAME' in one or " ADD " in one for one in recopy(rig, "child"))
    for name in ("parent", "beside", "below"):
        rig.write(f"INSERT INTO {name} (id) VALUES (3)")
        follow(rig)
        assert_copied(rig)
    assert_equal(rig)


@gated
def test_a_column_that_a_person_made_in_the_copy_alone_makes_way(rig: Rig) -> None:
    rig = begin(rig)
    rig.write("ALTER TABLE parent RENAME a TO z", "ALTER TABLE parent ADD a text", "INSERT INTO child (id) VALUES (2)")
    execute(rig.target_dsn, "ALTER TABLE child ADD z text")
    assert recopy(rig, "child")[:2] == [
        'ALTER TABLE "public"."child" DROP COLUMN "z"',
        'ALTER TABLE "public"."parent" RENAME COLUMN "a" TO "z"',
    ]
    rig.write(*(f"INSERT INTO {name} (id) VALUES (3)" for name in ("parent", "beside", "below")))
    follow(rig)
    assert_equal(rig)


@gated
def test_a_parent_that_is_copied_as_well_is_named_as_a_table_of_its_own(rig: Rig) -> None:
    rig = begin(rig)
    rig.write("ALTER TABLE parent RENAME a TO z", "ALTER TABLE parent ADD a text", "INSERT INTO child (id) VALUES (2)")
    recopy(rig, "child", "parent")
    rig.write(*(f"INSERT INTO {name} (id) VALUES (3)" for name in ("parent", "beside", "below")))
    follow(rig)
    assert_equal(rig)

"""Tables that somebody renamed at the target while rows of their former names were still to come."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError
from tests.integration.migrations.renaming import (
    assert_equal,
    follow_hints,
    rig_of_three_tables,  # noqa: F401  # a fixture
    write,
)
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

RENAME = ["ALTER TABLE a RENAME TO z"], "z"
MOVE = ["CREATE SCHEMA s", "ALTER TABLE a SET SCHEMA s"], "s.a"
TWICE = ["ALTER TABLE a RENAME TO y", "INSERT INTO y VALUES (200)", "ALTER TABLE y RENAME TO z"], "z"
INSERTIONS = ["INSERT INTO a VALUES (100)"]
OTHERS = ["UPDATE a SET v = 'later' WHERE id = 1", "DELETE FROM a WHERE id = 2"]


@gated
@pytest.mark.parametrize(
    ("ddl", "renames", "changes"),
    [
        (DdlPolicy.SKIP, RENAME, INSERTIONS),
        *(
            pytest.param(ddl, renames, changes, marks=pytest.mark.long)
            for ddl in DdlPolicy
            for renames in (RENAME, MOVE, TWICE)
            for changes in (INSERTIONS, OTHERS)
            if (ddl, renames, changes) != (DdlPolicy.SKIP, RENAME, INSERTIONS)
        ),
    ],
)
def test_a_table_renamed_at_the_target_gets_its_name_back_for_the_rows_that_have_it(
    rig: Rig, ddl: DdlPolicy, renames: tuple[list[str], str], changes: list[str]
) -> None:
    rig.run()
    rig = rig.having(ddl=ddl)
    statements, name = renames
    rig.write(*changes, *statements, f"INSERT INTO {name} VALUES (101)")
    execute(rig.target_dsn, *(statement for statement in statements if not statement.startswith("INSERT")))
    told = follow_hints(rig)
    assert "give it the name that these rows have" in told[0], told
    assert not any("CREATE TABLE" in hint for hint in told), told
    assert_equal(rig)
    write(rig, first=300)
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    "ddl", [pytest.param(DdlPolicy.REFUSE, marks=GATED), pytest.param(DdlPolicy.SKIP, marks=pytest.mark.long)]
)
def test_a_table_renamed_between_rows_of_one_transaction_is_renamed_by_a_run(rig: Rig, ddl: DdlPolicy) -> None:
    rig.run()
    rig = rig.having(ddl=ddl)
    rig.transaction(*INSERTIONS, *RENAME[0], "INSERT INTO z VALUES (101)")
    follow_hints(rig)
    assert_equal(rig)


@gated
def test_a_table_that_is_gone_at_the_target_is_copied_under_the_name_that_it_has_now(rig: Rig) -> None:
    rig.run()
    rig.write(*INSERTIONS, *RENAME[0], "INSERT INTO z VALUES (101)")
    execute(rig.target_dsn, "DROP TABLE a")
    with pytest.raises(FatalError, match=r"recopy --pipeline p --table public\.z`") as refused:
        rig.run()
    found = re.search(r"run (CREATE TABLE .*\)) at the target", str(refused.value))
    assert found is not None, refused.value
    execute(rig.target_dsn, found.group(1))
    recopy(rig, "z")
    rig.run()
    assert_equal(rig)


@gated
def test_a_copy_of_a_table_by_its_former_name_is_told_the_name_that_it_has_now(rig: Rig) -> None:
    rig.run()
    rig.write(*INSERTIONS, *RENAME[0], "INSERT INTO z VALUES (101)")
    with pytest.raises(FatalError, match=r"public\.a became public\.z"):
        rig.run()
    with pytest.raises(ConfigurationError, match=r"public\.a.* --table public\.z"):
        recopy(rig, "a")


def recopy(rig: Rig, table: str) -> None:
    recopy_tables(rig.config, rig.source, rig.target, [("public", table)], report=lambda progress: None)


@pytest.mark.parametrize(
    ("ddl", "is_sent"),
    [
        pytest.param(DdlPolicy.APPLY, True, marks=GATED),
        *(pytest.param(ddl, False, marks=pytest.mark.long) for ddl in (DdlPolicy.APPLY, DdlPolicy.REFUSE)),
    ],
)
def test_a_column_of_a_table_that_is_renamed_at_the_target_leads_on(rig: Rig, ddl: DdlPolicy, is_sent: bool) -> None:
    rig.run()
    rig = rig.having(ddl=ddl)
    add = "ALTER TABLE public.a ADD COLUMN more integer"
    rig.transaction(add, *([rig.ddl(add)] if is_sent else []), "INSERT INTO a VALUES (100)")
    rig.write(*RENAME[0], "INSERT INTO z VALUES (101)")
    execute(rig.target_dsn, *RENAME[0])
    assert "give it the name that these rows have" in follow_hints(rig)[0]
    assert_equal(rig)

"""Tables that take the name of one that was left out, and what the target has under that name."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError, SourceError
from tests.integration.migrations.renaming import (
    assert_equal,
    rig_of_three_tables,  # noqa: F401  # a fixture
)
from tests.support.rig import Rig, execute
from tests.support.variants import gated

WITHOUT_A = TablePatterns(exclude=("public.a",))


@pytest.fixture(name="without")
def rig_that_has_left_a_out(rig: Rig) -> Rig:
    rig.run()
    rig = rig.having(tables=WITHOUT_A)
    unpublish(rig)
    rig.run()
    return rig


def unpublish(rig: Rig) -> None:
    with pytest.raises(FatalError, match=r"patterns no longer match: public\.a") as refused:
        rig.run()
    (statement,) = re.findall(r"Run (ALTER PUBLICATION .*?);", str(refused.value))
    rig.write(statement)


def recopy(rig: Rig, table: str) -> list[str]:
    """Follow what refuses a copy, too. Returns the statements."""
    done: list[str] = []
    while True:
        try:
            recopy_tables(rig.config, rig.source, rig.target, [("public", table)], report=lambda progress: None)
        except FatalError as error:
            told = str(error)
            (statement,) = re.findall(r"(CREATE TABLE .*?\)\)|ALTER TABLE .*?)(?=\. |\), then| at the target)", told)
            done.append(statement)
            assert len(done) < 4, done
            execute(rig.target_dsn, statement)
        else:
            return done


@gated
def test_a_table_whose_name_by_now_is_left_out_is_not_told_to_be_copied_over_what_the_target_has(without: Rig) -> None:
    before = without.rows("SELECT * FROM a ORDER BY id")
    without.write("DROP TABLE a", "ALTER TABLE b RENAME TO a")
    unpublish(without)
    without.run()
    assert without.rows("SELECT * FROM a ORDER BY id") == before


@gated
def test_a_table_that_has_got_another_ones_rows_by_a_copy_is_not_told_to_be_that_one(without: Rig) -> None:
    rig = without.having(tables=TablePatterns())
    rig.write("ALTER TABLE a RENAME TO z", "ALTER TABLE b RENAME TO a", "INSERT INTO a VALUES (500)")
    with pytest.raises(SourceError, match=r"public\.b has taken the name public\.a, .*recopy .*--table public\.a"):
        rig.run()
    assert recopy(rig, "a") == []
    with pytest.raises(FatalError, match=r"recopy .*--table public\.z"):
        rig.run()
    done = recopy(rig, "z")
    assert all(statement.startswith("CREATE TABLE") for statement in done), done
    rig.write("INSERT INTO a VALUES (501)", "INSERT INTO z VALUES (501)")
    rig.run()
    assert_equal(rig)


def test_a_table_that_is_in_doubt_is_left_out(rig: Rig) -> None:
    rig.run()
    rig.write("ALTER TABLE a ALTER v TYPE varchar USING upper(v)", "DELETE FROM b")
    with pytest.raises(SourceError, match=r"public\.a was rewritten"):
        rig.run()
    without = rig.having(tables=WITHOUT_A)
    unpublish(without)
    without.run()
    assert_equal(without)

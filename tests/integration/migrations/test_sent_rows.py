"""DDL messages that write rows of followed tables are refused: the rows come by themselves."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import PLAIN, assert_equal, begin
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated


@pytest.fixture
def rig(rig: Rig) -> Rig:
    install(rig.source_dsn)
    begin(rig, *PLAIN)
    return rig.having(ddl=DdlPolicy.APPLY)


@gated
def test_it_is_refused_unless_it_finds_nothing_to_write(rig: Rig) -> None:
    migration = (
        "ALTER TABLE t ADD x integer",
        "ALTER TABLE t ALTER b TYPE numeric USING b * 2",
        "UPDATE t SET x = id WHERE x IS NULL",
        "CREATE TABLE audit AS SELECT * FROM t",
        "DROP TABLE audit",
    )
    rig.transaction(*(one for statement in migration for one in (statement, ddl(statement))))
    rig.run()
    assert_equal(rig)
    counted = "ALTER TABLE t ADD y integer", "UPDATE t SET b = b + 1"
    rig.transaction(*(one for statement in counted for one in (statement, ddl(statement))))
    database = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["dbname"]
    execute(rig.target_dsn, f"ALTER DATABASE {database} SET track_counts = off")
    with pytest.raises(FatalError, match="Set track_counts to on at the target"):
        rig.run()
    execute(rig.target_dsn, f"ALTER DATABASE {database} RESET track_counts")
    with pytest.raises(FatalError, match=r"writes rows of public\.t, which come by themselves: UPDATE") as refused:
        rig.run()
    execute(rig.target_dsn, counted[0])
    skip_as_the_hint_says(rig, refused.value)
    assert_equal(rig)


@gated
def test_one_about_a_column_that_no_row_has_told_of_says_what_to_do(rig: Rig) -> None:
    index = "CREATE INDEX ON public.t (c)"
    rig.write("ALTER TABLE t RENAME b TO c", f"BEGIN; {index}; {ddl(index)}; COMMIT")
    with pytest.raises(FatalError, match=r"Add the column .* Or, if the source renamed another column to"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t RENAME b TO c")
    rig.run()
    rig.write("UPDATE t SET c = 7 WHERE id = 1")
    rig.run()
    assert_equal(rig)


def test_a_truncation_that_is_sent_behind_rows_of_its_transaction_is_refused(rig: Rig) -> None:
    truncate = "TRUNCATE t"
    rig.transaction("INSERT INTO t (id) VALUES (500)", truncate, ddl(truncate), "INSERT INTO t (id) VALUES (501)")
    rig.run()
    assert_equal(rig)
    rig.transaction(truncate, "INSERT INTO t (id) VALUES (502)", ddl(truncate))
    with pytest.raises(FatalError, match=r"writes rows of public\.t, which come by themselves: TRUNCATE") as refused:
        rig.run()
    skip_as_the_hint_says(rig, refused.value)
    assert_equal(rig)

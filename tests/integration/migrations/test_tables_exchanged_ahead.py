"""Tables that somebody renamed at the target, and whose names others have there, while rows of these were to come."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.renaming import (
    assert_equal,
    follow_hints,
    rig_of_three_tables,  # noqa: F401  # a fixture
    write,
)
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

ARCHIVE = ["ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (LIKE a_old INCLUDING ALL)"]
CHAIN = ["ALTER TABLE a RENAME TO z", "ALTER TABLE b RENAME TO a"]
SWAP = ["ALTER TABLE a RENAME TO x", "ALTER TABLE b RENAME TO a", "ALTER TABLE x RENAME TO b"]
ROWS = ["INSERT INTO a VALUES (100)", "INSERT INTO b VALUES (100)"]


@gated
@pytest.mark.parametrize(
    ("ddl", "statements"),
    [
        (DdlPolicy.SKIP, ARCHIVE),
        pytest.param(DdlPolicy.APPLY, SWAP, marks=GATED),
        *(
            pytest.param(ddl, statements, marks=pytest.mark.long)
            for ddl in DdlPolicy
            for statements in (ARCHIVE, CHAIN, SWAP)
            if (ddl, statements) not in [(DdlPolicy.SKIP, ARCHIVE), (DdlPolicy.APPLY, SWAP)]
        ),
    ],
)
def test_rows_go_to_the_table_that_had_those_before_whatever_has_its_name(
    rig: Rig, ddl: DdlPolicy, statements: list[str]
) -> None:
    rig.run()
    rig = rig.having(ddl=ddl)
    rig.write(*ROWS, *statements)
    execute(rig.target_dsn, *statements)
    if statements is not ARCHIVE:
        # A new table with rows stops the run before.
        write(rig, first=200)
    told = follow_hints(rig)
    assert "give it the name that these rows have" in told[0], told
    write(rig, first=300)
    follow_hints(rig)
    assert_equal(rig)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            ["ALTER TABLE a RENAME TO a_bak", "CREATE TABLE a AS TABLE a_bak", "ALTER TABLE a ADD PRIMARY KEY (id)"],
            id="renamed",
        ),
        pytest.param(["CREATE TABLE a_bak AS TABLE a", "TRUNCATE a", "INSERT INTO a TABLE a_bak"], id="kept"),
        pytest.param(
            [
                "CREATE TABLE a_new (LIKE a INCLUDING ALL)",
                "INSERT INTO a_new TABLE a",
                "DROP TABLE a",
                "ALTER TABLE a_new RENAME TO a",
            ],
            id="dropped",
        ),
        pytest.param(
            [
                "ALTER TABLE a RENAME TO a_0",
                "CREATE TABLE a (LIKE a_0 INCLUDING ALL) PARTITION BY RANGE (id)",
                "ALTER TABLE a ATTACH PARTITION a_0 FOR VALUES FROM (MINVALUE) TO (MAXVALUE)",
            ],
            id="partitioned",
        ),
    ],
)
@gated
def test_a_table_that_is_built_anew_at_the_target_stops_the_run_only_beside_the_former_one(
    rig: Rig, statements: list[str]
) -> None:
    rig.run()
    execute(rig.target_dsn, *statements)
    write(rig, first=200)
    if "RENAME TO a_bak" in statements[0]:
        with pytest.raises(
            FatalError, match=r"called public\.a_bak at the target.*or drop public\.a_bak where public\.a "
        ):
            rig.run()
        execute(rig.target_dsn, "DROP TABLE a_bak")
    rig.run()
    assert_equal(rig)
    write(rig, first=300)
    rig.run()
    assert_equal(rig)


@gated
def test_a_table_that_is_copied_anew_takes_the_place_of_the_former_one(rig: Rig) -> None:
    rig.run()
    rig.write(*ROWS)
    execute(rig.target_dsn, "ALTER TABLE a RENAME TO a_bak", "CREATE TABLE a (LIKE a_bak INCLUDING ALL)")
    with pytest.raises(FatalError, match=r"`parallel-apply recopy --pipeline p --table public\.a`"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "a")], report=lambda progress: None)
    rig.run()
    write(rig, first=200)
    rig.run()
    assert_equal(rig)

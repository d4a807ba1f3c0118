"""A partition that is unlogged, if only for a while, sends nothing: the run stops, or the server refuses it."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    )
    return rig


def recopy(rig: Rig) -> None:
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)


def ends_equal(rig: Rig) -> None:
    rig.write("DELETE FROM t WHERE id % 2 = 0")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_the_server_makes_no_followed_partition_unlogged(rig: Rig) -> None:
    rig.prepare()
    rig.write("CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100) TO (200)", "INSERT INTO t VALUES (1), (101)")
    execute(rig.target_dsn, "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100) TO (200)")
    rig.run()
    rig.run()
    for leaf in ("t_0", "t_1"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="part of a publication"):
            rig.write(f"ALTER TABLE {leaf} SET UNLOGGED")
    # What looks alike, and is no reason to stop.
    rig.write("VACUUM FULL t_0", "CLUSTER t_1 USING t_1_pkey")
    ends_equal(rig)


@gated
@pytest.mark.parametrize("statement", ["CREATE UNLOGGED TABLE t_1 (id integer PRIMARY KEY)", ""])
def test_a_new_one_that_is_unlogged_stops_the_run(rig: Rig, statement: str) -> None:
    rig.prepare()
    where = "FOR VALUES FROM (100) TO (200)"
    made = [statement, f"ALTER TABLE t ATTACH PARTITION t_1 {where}"] if statement else []
    rig.write(*(made or [f"CREATE UNLOGGED TABLE t_1 PARTITION OF t {where}"]), "INSERT INTO t VALUES (1), (101)")
    execute(rig.target_dsn, f"CREATE TABLE t_1 PARTITION OF t {where}")
    with pytest.raises(FatalError, match=r"public\.t_1 of public\.t is unlogged(?s:.*)SET LOGGED"):
        rig.run()
    execute(rig.source_dsn, "ALTER TABLE t_1 SET LOGGED")
    with pytest.raises(
        FatalError, match=r"public\.t_1 was (rewritten, perhaps while it was unlogged|attached with rows)"
    ):
        rig.run()
    recopy(rig)
    ends_equal(rig)


@gated
def test_one_that_was_unlogged_before_it_was_watched_stops_the_run(rig: Rig) -> None:
    """As behind an upgrade of the pipeline, or where somebody took it out of the publication."""
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    rig.write('ALTER PUBLICATION "parallel_apply_p.parts" DROP TABLE t_0')
    rig.write("ALTER TABLE t_0 SET UNLOGGED", "INSERT INTO t VALUES (2)", "ALTER TABLE t_0 SET LOGGED")
    with pytest.raises(FatalError, match=r"public\.t_0 was rewritten, perhaps while it was unlogged(?s:.*)recopy"):
        rig.run()
    recopy(rig)
    ends_equal(rig)


@gated
@pytest.mark.parametrize(
    "emptied", ["DELETE FROM t WHERE id > 100", pytest.param("TRUNCATE t_1", marks=pytest.mark.long)]
)
def test_a_new_one_that_lost_its_rows_while_it_was_unlogged_stops_the_run(rig: Rig, emptied: str) -> None:
    rig.prepare()
    rig.write(
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100) TO (200)", "INSERT INTO t VALUES (1), (101)",
        "ALTER TABLE t_1 SET UNLOGGED", emptied, "ALTER TABLE t_1 SET LOGGED",
    )  # fmt: skip
    execute(rig.target_dsn, "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100) TO (200)")
    with pytest.raises(FatalError, match=r"public\.t_1 may have lost rows(?s:.*)recopy"):
        rig.run()
    recopy(rig)
    ends_equal(rig)


def test_it_is_found_before_the_first_run(rig: Rig) -> None:
    rig.write("ALTER TABLE t_0 SET UNLOGGED")
    (found,) = [one for one in check_pipeline(rig.config, rig.source, rig.target).findings if "unlogged" in one.what]
    assert found.what == "the partition public.t_0 of public.t is unlogged: no change of its rows is sent"
    execute(rig.source_dsn, *found.fix)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    ends_equal(rig)


@pytest.mark.long
def test_a_foreign_partition_is_found_before_the_first_run(rig: Rig) -> None:
    rig.write(
        "CREATE FOREIGN DATA WRAPPER far", "CREATE SERVER far FOREIGN DATA WRAPPER far",
        "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE FOREIGN TABLE t_1 PARTITION OF t FOR VALUES FROM (100) TO (200) SERVER far",
    )  # fmt: skip
    found = [one.what for one in check_pipeline(rig.config, rig.source, rig.target).findings]
    assert "the partition public.t_1 of public.t is a foreign table: no change of its rows is sent" in found

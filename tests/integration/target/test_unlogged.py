"""Tables that a crash of the target would empty, while the positions stay: no run goes on with one."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

PARTITIONED = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE part PARTITION OF t DEFAULT",
)


@gated
@pytest.mark.parametrize(
    ("tables", "unlogged"),
    [(("CREATE TABLE t (id int PRIMARY KEY)",), "t"), pytest.param(PARTITIONED, "part", marks=GATED)],
)
def test_an_unlogged_table_stops_each_run_and_is_copied_anew_after_a_crash(
    rig: Rig, tables: tuple[str, ...], unlogged: str
) -> None:
    rig = rig.having(tables=TablePatterns())
    rig.both(*tables)
    execute(rig.target_dsn, f"ALTER TABLE {unlogged} SET UNLOGGED")
    with pytest.raises(ConfigurationError, match=rf"public\.{unlogged}.* is unlogged"):
        rig.prepare()
    execute(rig.target_dsn, f"ALTER TABLE {unlogged} SET LOGGED")
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    execute(rig.target_dsn, f"ALTER TABLE {unlogged} SET UNLOGGED")
    rig.write("INSERT INTO t VALUES (2)")
    with pytest.raises(ConfigurationError, match="is unlogged") as refused:
        rig.run()
    assert "parallel-apply recopy --pipeline p --table public.t" in str(refused.value)
    (finding,) = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    # As a crash does.
    execute(rig.target_dsn, f"TRUNCATE {unlogged}", *finding.fix)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.write("INSERT INTO t VALUES (3)")
    rig.run()
    assert rig.comparison().equal


def test_a_foreign_partition_is_refused(rig: Rig) -> None:
    """Its rows are committed at another server, before or without the positions."""
    rig = rig.having(tables=TablePatterns())
    rig.both("CREATE TABLE t (id int) PARTITION BY RANGE (id)", "CREATE TABLE part PARTITION OF t DEFAULT")
    execute(
        rig.target_dsn,
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere",
        'CREATE FOREIGN TABLE "Far" PARTITION OF t FOR VALUES FROM (0) TO (10) SERVER elsewhere',
    )
    with pytest.raises(ConfigurationError, match=r"partition public\.Far of public\.t is a foreign table") as refused:
        rig.prepare()
    execute(rig.target_dsn, *re.findall(r"ALTER TABLE \S+ DETACH PARTITION \S+[^.;\s]", str(refused.value)))
    rig.prepare()

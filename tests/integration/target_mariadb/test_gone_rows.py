"""Rows that went with a partition of the source's, which MariaDB leaves to a person."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import install
from tests.support.mariadb_rig import MariaDbRig
from tests.support.variants import gated

_TABLE = "CREATE TABLE t (k integer, id integer, PRIMARY KEY (k, id))"


@gated
def test_rows_that_the_transaction_wrote_before_are_deleted_behind_the_run_that_skips_it(maria: MariaDbRig) -> None:
    maria.make(
        [
            f"{_TABLE} PARTITION BY RANGE (k)",
            *(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES FROM ({n}0) TO ({n + 1}0)" for n in range(3)),
        ],
        [_TABLE],
    )
    rig = maria.rig.having(tables=TablePatterns(include=("public.t",)))
    install(rig.source_dsn)
    rig.prepare()
    rig.write("INSERT INTO t SELECT g, g FROM generate_series(0, 29) g")
    rig.run()
    rig.transaction("INSERT INTO t VALUES (3, 100), (15, 100)", "DROP TABLE t_0", "INSERT INTO t VALUES (16, 100)")
    with pytest.raises(FatalError, match="the transaction wrote rows of the table before") as caught:
        rig.run()
    found = re.search(
        r"To go on, run once with ddl=skip and until=([0-9A-F/]+)\..* in its own words: (.*), but for those that it "
        r"wrote behind that",
        str(caught.value),
    )
    assert found is not None
    until, condition = found.groups()
    rig.having(ddl=DdlPolicy.SKIP).run(until=until)
    maria.server.run(f"DELETE FROM t WHERE {condition}", database=maria.database)
    rig.run()
    maria.require_equal("SELECT k, id FROM t")

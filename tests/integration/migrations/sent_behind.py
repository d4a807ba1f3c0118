"""DDL that is sent behind statements that were not: the tables, and what is asked of them."""

from __future__ import annotations

import re

from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig

SWAP = ("ALTER TABLE t RENAME TO t_old", "ALTER TABLE t_new RENAME TO t")
BACK = ("ALTER TABLE t RENAME TO t_new", "ALTER TABLE t_old RENAME TO t")
COMPUTE = "ALTER TABLE t ALTER v TYPE numeric USING v * 100"


def sent(*statements: str) -> list[str]:
    return [text for one in statements for text in (one, ddl(one))]


def assert_same(rig: Rig, *tables: str) -> None:
    for table in tables:
        query = f"SELECT to_jsonb(r)::text FROM {table} r ORDER BY 1"
        assert rig.rows(query) == rig.rows(query, side="source")


def tables_begun(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both(*(f"CREATE TABLE {name} (id integer PRIMARY KEY, v numeric)" for name in ("t", "t_new")))
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1.5)", "INSERT INTO t_new VALUES (1, 2.5)")
    rig.run()


def columns_begun(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 7, 70)")
    rig.run()


def renames_in(refused: FatalError) -> list[str]:
    found = re.search(r"Run (ALTER TABLE .*?) at the target, then run again", str(refused))
    assert found is not None, refused
    return found[1].split("; ")

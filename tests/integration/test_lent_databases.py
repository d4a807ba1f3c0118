"""Databases that are lent to one test after another: what one of them did to its own, the next one does not see."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from tests.support.databases import Databases
from tests.support.rig import execute


@pytest.mark.parametrize(
    ("statement", "is_kept"),
    [
        ("CREATE TABLE t (id integer)", True),
        ("ALTER DATABASE {name} SET work_mem = '1MB'", True),
        ("REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC", False),
        ("REVOKE SELECT ON pg_stat_activity FROM PUBLIC", False),
        ("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC", False),
        ("ALTER DATABASE {name} OWNER TO pg_monitor", False),
    ],
)
def test_a_database_is_lent_again_only_if_it_is_as_new(
    source_server: PostgresServer, statement: str, is_kept: bool
) -> None:
    with closing(Databases(server=source_server)) as databases:
        name = databases.lend()
        execute(source_server.dsn(name), statement.format(name=name))
        databases.take_back(name)
    with psycopg.connect(source_server.dsn()) as connection:
        found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone()
    assert (found is not None) is is_kept

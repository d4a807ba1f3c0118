"""Truncates and DDL act where the source had them, and what cannot be applied is refused by name."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, TargetError
from tests.integration.tables.equal import equal_after, rig_of_channels, rig_of_four_channels  # noqa: F401  # fixtures
from tests.support.rig import Rig
from tests.support.variants import gated


@gated
def test_truncates_are_serialization_points(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE u (id serial PRIMARY KEY)")

    def write() -> None:
        rig.write(
            "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 300) i",
            "INSERT INTO u SELECT FROM generate_series(1, 9)",
        )
        rig.transaction("TRUNCATE t, u RESTART IDENTITY", "INSERT INTO t SELECT i, 'b' FROM generate_series(1, 1000) i")
        rig.write("UPDATE t SET v = 'c' WHERE id % 2 = 0", "TRUNCATE u", "INSERT INTO u VALUES (5)")

    equal_after(rig, write)


@gated
def test_a_table_is_truncated_again_at_once(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE u (id integer PRIMARY KEY)")

    def write() -> None:
        rig.transaction("INSERT INTO t VALUES (1)", "TRUNCATE t", "TRUNCATE u, t", "INSERT INTO t VALUES (2)")
        rig.transaction("TRUNCATE u", "ALTER TABLE u ADD COLUMN v text", "TRUNCATE u", "INSERT INTO u VALUES (3, 'v')")

    equal_after(rig.having(ddl=DdlPolicy.APPLY), write)


@gated
def test_a_table_is_truncated_again_under_another_name(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE u (id integer PRIMARY KEY REFERENCES t)")

    def write() -> None:
        rig.write("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
        rig.run()
        rig.transaction("TRUNCATE t, u", "ALTER TABLE t RENAME TO w", "TRUNCATE w, u", "INSERT INTO w VALUES (2)")

    equal_after(rig.having(ddl=DdlPolicy.APPLY), write)


@gated
def test_ddl_messages_run_on_the_target(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    ddl = "ALTER TABLE t ADD COLUMN w integer DEFAULT 7"

    def write() -> None:
        rig.write("INSERT INTO t VALUES (1, 'a')")
        rig.transaction(
            ddl,
            rig.ddl(ddl),
            "INSERT INTO t VALUES (2, 'b', 3)",
        )
        rig.write("INSERT INTO t VALUES (3, 'c', 4)", "UPDATE t SET w = 0 WHERE id = 1")

    equal_after(rig, write)


@gated
def test_refused_ddl_stops_there_and_goes_on_once_it_is_allowed(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.transaction(rig.ddl("CREATE TABLE made ()"))
    rig.write("INSERT INTO t VALUES (2)")
    with pytest.raises(FatalError, match=r"refuses: .*CREATE TABLE made"):
        rig.run()
    assert rig.rows("SELECT id FROM t") == [(1,)]
    rig.having(ddl=DdlPolicy.APPLY).run()
    assert rig.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
    assert rig.rows("SELECT to_regclass('made') IS NOT NULL") == [(True,)]


@gated
def test_an_update_that_finds_no_row_is_an_error_that_names_the_key(wide_rig: Rig) -> None:
    rig = wide_rig
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 100) i")
    rig.run()
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("DELETE FROM t WHERE id = 42")
    rig.write("UPDATE t SET v = 'b'")
    with pytest.raises(TargetError, match="42"):
        rig.run()
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("INSERT INTO t VALUES (42, 'a')")
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_start_on_tables_with_rows_is_refused(rig: Rig, side: str) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    with psycopg.connect(rig.source_dsn if side == "source" else rig.target_dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(FatalError, match=r"public\.t"):
        rig.prepare()


def test_missing_tables_and_columns_are_named_before_anything_is_created(rig: Rig) -> None:
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE u (id integer PRIMARY KEY)")
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("CREATE TABLE t (id integer PRIMARY KEY)")
    with pytest.raises(FatalError, match=r"(?s)\bv\b.*public\.u|public\.u.*\bv\b"):
        rig.prepare()
    assert rig.rows("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()", side="source") == [
        (0,)
    ]
    assert rig.rows("SELECT count(*) FROM pg_namespace WHERE nspname = 'parallel_apply'") == [(0,)]


def test_no_matching_table_is_refused(rig: Rig) -> None:
    with pytest.raises(ConfigurationError, match="nothing"):
        rig.having(tables=TablePatterns(include=("nothing.*",))).prepare()

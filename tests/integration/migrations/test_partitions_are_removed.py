"""Partitions that are dropped or detached while the event trigger tells: their rows go at the target, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.copy.recopying import again
from tests.integration.migrations.removals import PARTITIONED, PLAIN, begun, require_equal, require_recopy
from tests.support.ddl_messages import ddl
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants

FOLLOWED = {
    "dropped": ["DROP TABLE t_1"],
    "detached": ["ALTER TABLE t DETACH PARTITION t_1"],
    "detached, and written to by itself": [
        "ALTER TABLE t DETACH PARTITION t_1", "INSERT INTO t_1 VALUES ('2024-01-01 01:00', 9, 'x')", "DROP TABLE t_1",
    ],
    "emptied before": ["DELETE FROM t_1", "DROP TABLE t_1"],
    "written to before": [
        "UPDATE t SET v = 'b' WHERE at < '2024-01-10'", "INSERT INTO t VALUES ('2024-01-11 07:00', 1, 'x')",
        "DROP TABLE t_1",
    ],
    "rows moved before": ["UPDATE t SET at = at + interval '1 year' WHERE at < '2024-01-10'", "DROP TABLE t_1"],
    "rows come back elsewhere": ["DROP TABLE t_1", "INSERT INTO t VALUES ('2024-01-01', 1, 'x')"],
    "another of its name": [
        "DROP TABLE t_1", "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-01-15')",
        "INSERT INTO t VALUES ('2024-01-01', 1, 'x'), ('2024-01-21', 1, 'y')",
    ],
    "with partitions of its own": ["DROP TABLE t_3"],
    "below another": ["DROP TABLE t_31"],
    "one after the other": ["DROP TABLE t_31", "ALTER TABLE t DETACH PARTITION t_3"],
    "together": ["DROP TABLE t_1, t_2, t_31"],
    "in a block, between rows": [
        "DO $$ BEGIN INSERT INTO t VALUES ('2024-01-05 07:00', 7, 'x'); ALTER TABLE t DETACH PARTITION t_1; "
        "DROP TABLE t_1; INSERT INTO t VALUES ('2024-01-05 07:00', 7, 'y'); END $$"
    ],
    "rolled back in part": ["BEGIN; SAVEPOINT a; DROP TABLE t_1; ROLLBACK TO a; DROP TABLE t_2; COMMIT"],
    "in a session with settings of its own": [
        "SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'; SET quote_all_identifiers = on; DROP TABLE t_1"
    ],
}  # fmt: skip
STOPS = {
    "concurrently": ["ALTER TABLE t_3 DETACH PARTITION t_31 CONCURRENTLY"],
    "with all of its schema": ["CREATE SCHEMA old", "ALTER TABLE t_1 SET SCHEMA old", "DROP SCHEMA old CASCADE"],
    "untold": ["SET event_triggers = off; DROP TABLE t_1"],
    "with other bounds, untold": [
        "SET event_triggers = off; ALTER TABLE t DETACH PARTITION t_1; DELETE FROM t_1; "
        "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2023-01-01') TO ('2023-02-01')",
        "DROP TABLE t_1",
    ],
    "back for a while": [
        "ALTER TABLE t DETACH PARTITION t_1",
        "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
        "INSERT INTO t VALUES ('2024-01-11 07:00', 1, 'x')",
        "SET event_triggers = off; DROP TABLE t_1",
    ],
    "back with its rows": [
        "ALTER TABLE t DETACH PARTITION t_1",
        "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
    ],
    "what others leave": ["ALTER TABLE t DETACH PARTITION t_rest"],
    "truncated before": ["TRUNCATE t_1", "DROP TABLE t_1"],
}


@pytest.mark.parametrize("target", [PARTITIONED, pytest.param(PLAIN, marks=GATED)], ids=["alike", "plain"])
@pytest.mark.parametrize(
    "case",
    variants(
        FOLLOWED,
        gated=[
            "detached", "detached, and written to by itself", "rows moved before", "another of its name", "together",
            "with partitions of its own", "below another", "rolled back in part",
            "in a session with settings of its own",
        ],
    ),
)  # fmt: skip
def test_the_rows_go_where_they_went_at_the_source(rig: Rig, case: str, target: tuple[str, ...]) -> None:
    rig = begun(rig, *target)
    rig.write(*FOLLOWED[case])
    rig.run()
    require_equal(rig)
    rig.write("INSERT INTO t VALUES ('2024-02-11 07:00', 1, 'x') ON CONFLICT DO NOTHING")
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize("case", STOPS)
def test_what_the_trigger_does_not_tell_whole_stops_the_run(rig: Rig, case: str) -> None:
    rig = begun(rig)
    rig.write(*STOPS[case])
    require_recopy(rig)


@gated
def test_a_run_up_to_a_place_before_it_keeps_the_rows(rig: Rig) -> None:
    rig = begun(rig)
    rig.write("UPDATE t SET v = 'b' WHERE at < '2024-01-10'")
    ((until,),) = rig.rows("SELECT pg_current_wal_lsn()::text", side="source")
    before = rig.rows("SELECT to_jsonb(r)::text FROM t r ORDER BY 1", side="source")
    rig.write("DROP TABLE t_1")
    rig.run(until=until)
    assert rig.rows("SELECT to_jsonb(r)::text FROM t r ORDER BY 1") == before
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize("policy", DdlPolicy)
def test_they_are_rows_whatever_becomes_of_ddl(rig: Rig, policy: DdlPolicy) -> None:
    rig = begun(rig).having(ddl=policy)
    rig.write("DROP TABLE t_1")
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize("statement", ["DROP TABLE public.t_1", "ALTER TABLE public.t DETACH PARTITION public.t_1"])
@pytest.mark.parametrize("is_ahead", [True, False])
def test_the_statement_may_be_sent_as_well(rig: Rig, statement: str, is_ahead: bool) -> None:
    rig = begun(rig).having(ddl=DdlPolicy.APPLY)
    row = "INSERT INTO t VALUES ('2024-01-11 07:00', 1, 'x')"
    rig.transaction(*sorted((statement, ddl(statement)), reverse=is_ahead), row)
    rig.run()
    require_equal(rig)
    rig.write("INSERT INTO t VALUES ('2024-02-11 07:00', 1, 'x')")
    rig.run()
    require_equal(rig)


@gated
@pytest.mark.parametrize("is_captured", [True, False])
def test_a_copy_of_a_later_moment_keeps_the_rows_that_are_back(rig: Rig, is_captured: bool) -> None:
    rig = begun(rig)
    rig.write("DROP TABLE t_1")
    if is_captured:
        rig.capture("alone")
    rig.write("INSERT INTO t VALUES ('2024-01-11 07:00', 1, 'x')")
    again(rig, "t")
    rig.run()
    require_equal(rig)


@gated
def test_a_table_that_has_another_name_meanwhile_loses_its_rows(rig: Rig) -> None:
    rig = begun(rig).having(tables=TablePatterns(include=("public.t", "public.u")), ddl=DdlPolicy.APPLY)
    rig.write("ALTER TABLE t RENAME TO u", "DROP TABLE t_1", "INSERT INTO u VALUES ('2024-02-11 07:00', 1, 'x')")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_column_of_the_bounds_that_has_another_name_since_stops_the_run(rig: Rig) -> None:
    rig = begun(rig).having(ddl=DdlPolicy.APPLY)
    row = "INSERT INTO t VALUES ('2024-02-11 07:00', 1, 'x')"
    rig.write("ALTER TABLE t RENAME at TO moment", row, "DROP TABLE t_1")
    with pytest.raises(FatalError, match=r"rows of public\.t went with a partition(?s:.*)recopy"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t RENAME at TO moment")
    again(rig, "t")
    rig.run()
    require_equal(rig)
    rig.write("DROP TABLE t_2")
    rig.run()
    require_equal(rig)


@gated
def test_a_column_of_the_bounds_that_was_renamed_and_not_written_to_is_known(rig: Rig) -> None:
    rig = begun(rig).having(ddl=DdlPolicy.APPLY)
    rig.write("ALTER TABLE t RENAME at TO moment", "DROP TABLE t_1")
    rig.run()
    rig.write("INSERT INTO t VALUES ('2024-02-11 07:00', 1, 'x')")
    rig.run()
    require_equal(rig)


@gated
def test_a_target_that_keeps_rows_stops_the_run(rig: Rig) -> None:
    rig = begun(rig)
    execute(
        rig.target_dsn,
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER keep BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER keep",
    )
    rig.write("DROP TABLE t_1")
    with pytest.raises(FatalError, match="keep"):
        rig.run()
    execute(rig.target_dsn, "DROP TRIGGER keep ON t")
    rig.run()
    require_equal(rig)


@gated
def test_a_target_that_tells_rows_apart_by_another_type_stops_the_run(rig: Rig) -> None:
    rig = begun(rig, "CREATE TABLE t (at text, id bigint, v text, PRIMARY KEY (at, id))")
    rig.write("DROP TABLE t_31")
    with pytest.raises(FatalError, match=r"of other types: at(?s:.*)recopy"):
        rig.run()
    again(rig, "t")
    rig.run()
    assert rig.rows("SELECT count(*) FROM t") == rig.rows("SELECT count(*) FROM t", side="source")


@contextmanager
def waiting_drop(rig: Rig, *before: str, drop: str) -> Iterator[None]:
    """A session that drops waits for another one, which has run statements, until the block ends."""
    with psycopg.connect(rig.source_dsn) as holder, ThreadPoolExecutor(1) as pool:
        for statement in before:
            holder.execute(statement)
        dropped = pool.submit(execute, rig.source_dsn, drop)
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        deadline = time.monotonic() + 20
        while rig.rows(waits, side="source") == [(0,)]:
            assert time.monotonic() < deadline
        yield
        holder.commit()
        dropped.result()


@gated
def test_a_drop_that_had_to_wait_tells_of_nothing_that_another_one_took(rig: Rig) -> None:
    rig = begun(rig).having(tables=TablePatterns(include=("public.[tu]",)))
    rig.both(
        "CREATE TABLE u (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE u_1 PARTITION OF u FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE u_rest PARTITION OF u DEFAULT",
    )
    rig.run()
    rig.write("INSERT INTO u SELECT generate_series(1, 9)")
    rig.run()
    with waiting_drop(rig, "LOCK TABLE t_1 IN SHARE MODE", drop="DROP TABLE t_1"):
        rig.write("DROP TABLE u_1", "INSERT INTO u VALUES (5)")
    rig.run()
    require_equal(rig)
    assert rig.rows("SELECT id FROM u") == [(5,)]


@gated
@pytest.mark.parametrize(
    "meanwhile",
    [
        [],
        ["DELETE FROM t_1", "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2023-01-01') TO ('2023-02-01')"],
    ],
    ids=["gone", "elsewhere"],
)
def test_a_drop_of_a_partition_that_another_one_detached_meanwhile_stops_the_run(
    rig: Rig, meanwhile: Sequence[str]
) -> None:
    rig = begun(rig)
    row = "INSERT INTO t VALUES ('2024-01-11 07:00', 1, 'x')"
    with waiting_drop(rig, "ALTER TABLE t DETACH PARTITION t_1", row, *meanwhile, drop="DROP TABLE t_1"):
        pass
    require_recopy(rig)


@gated
def test_a_plain_role_s_drop_is_told_as_well(rig: Rig) -> None:
    rig = begun(rig)
    rig.write(
        "CREATE ROLE migrates LOGIN",
        *(f"ALTER TABLE {table} OWNER TO migrates" for table in ("t", "t_1", "t_2")),
        "GRANT CREATE ON SCHEMA public TO migrates",
        "SET ROLE migrates; DROP TABLE t_1; ALTER TABLE t DETACH PARTITION t_2",
    )
    try:
        rig.run()
        require_equal(rig)
    finally:
        rig.write("DROP OWNED BY migrates CASCADE", "DROP ROLE migrates")

"""Functions for readers of the target: a snapshot that is a state of the source, and a wait for what was written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def running(rig: Rig) -> Rig:
    """A pipeline that has applied one transaction."""
    rig = rig.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.LEADER_MERGE, epoch_max_changes=10)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) i")
    rig.run("first")
    return rig


@contextmanager
def reading(rig: Rig, user: str = "postgres") -> Iterator[psycopg.Connection]:
    with psycopg.connect(psycopg.conninfo.make_conninfo(rig.target_dsn, user=user), autocommit=True) as connection:
        yield connection


def snapshot(connection: psycopg.Connection, pipeline: str = "p") -> int:
    row = connection.execute("SELECT parallel_apply.consistent_snapshot(%s)", [pipeline]).fetchone()
    assert row is not None
    return int(row[0])


def waited(connection: psycopg.Connection, offset: str, patience: str = "30 s", pipeline: str = "p") -> bool:
    query = "SELECT parallel_apply.wait_for(%s, %s, %s::interval)"
    row = connection.execute(query, [pipeline, offset, patience]).fetchone()
    assert row is not None
    return bool(row[0])


def source_offset(rig: Rig) -> str:
    ((offset,),) = rig.rows("SELECT pg_current_wal_insert_lsn()::text", side="source")
    return str(offset)


@gated
def test_a_snapshot_says_after_which_transaction_it_is_and_stays_there(running: Rig) -> None:
    with reading(running) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        seen = snapshot(connection)
        running.write("UPDATE t SET v = 'b'")
        running.run("second")
        assert snapshot(connection) == seen
        assert connection.execute("SELECT DISTINCT v FROM t").fetchall() == [("a",)]
        connection.execute("COMMIT")
        connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert snapshot(connection) == seen + 1
        assert connection.execute("SELECT DISTINCT v FROM t").fetchall() == [("b",)]


@gated
def test_a_transaction_whose_statements_see_different_states_is_told_so(running: Rig) -> None:
    with reading(running) as connection, pytest.raises(psycopg.Error, match="REPEATABLE READ"):
        snapshot(connection)


@gated
def test_channels_at_different_transactions_are_no_snapshot(running: Rig) -> None:
    execute(running.target_dsn, "UPDATE parallel_apply.position SET seqno = seqno + 1 WHERE channel = 0")
    with reading(running) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.Error, match="consistency=epoch"):
            snapshot(connection)


def test_a_pipeline_that_nobody_knows_is_named(running: Rig) -> None:
    with reading(running) as connection:
        with pytest.raises(psycopg.Error, match="no pipeline other"):
            waited(connection, "0/0", pipeline="other")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.Error, match="no pipeline other"):
            snapshot(connection, "other")


@gated
def test_a_reader_needs_nothing_but_the_schema(running: Rig) -> None:
    role = f"reader_{uuid.uuid4().hex[:8]}"
    execute(running.target_dsn, f"CREATE ROLE {role} LOGIN", f"GRANT USAGE ON SCHEMA parallel_apply TO {role}")
    try:
        with reading(running, role) as connection:
            assert waited(connection, "0/0")
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            assert snapshot(connection) >= 0
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM parallel_apply.position")
    finally:
        execute(running.target_dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@gated
def test_a_writer_of_the_source_waits_for_what_it_wrote(running: Rig) -> None:
    running.write("UPDATE t SET v = 'mine' WHERE id = 7")
    offset = source_offset(running)
    with reading(running) as connection, ThreadPoolExecutor(max_workers=1) as pool:
        assert not waited(connection, offset, "0 s")
        applied = pool.submit(running.run, "second")
        assert waited(connection, offset, "60 s")
        assert connection.execute("SELECT v FROM t WHERE id = 7").fetchall() == [("mine",)]
        applied.result()


@gated
def test_of_a_run_without_changes_the_offset_is_reached_too(running: Rig) -> None:
    execute(running.source_dsn, "CREATE TABLE not_followed_yet (id integer)", "DROP TABLE not_followed_yet")
    offset = source_offset(running)
    with reading(running) as connection:
        assert not waited(connection, offset, "0.2 s")
        running.run("empty")
        assert waited(connection, offset, "0 s")


@gated
def test_whoever_waits_inside_a_snapshot_is_told_that_it_would_see_nothing(running: Rig) -> None:
    with reading(running) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.Error, match="READ COMMITTED"):
            waited(connection, "0/0")

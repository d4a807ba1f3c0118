"""Lanes that wait for somebody else's lock at the target: it is told whose, and a lane that is cancelled ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.apply import target_watch
from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.run import OpenedRun
from tests.support.rig import Rig
from tests.support.variants import gated, variants

DEADLINE_SECONDS = 120
WRITES = {
    "merged": "UPDATE t SET v = 'b'",
    "replayed": "TRUNCATE t",
}
LOCKS = {
    "a table": "LOCK TABLE t IN ACCESS EXCLUSIVE MODE",
    "a row": "SELECT FROM t FOR UPDATE",
    "positions": "SELECT FROM parallel_apply.position FOR UPDATE",
}


@contextmanager
def locked(rig: Rig, statement: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rig.target_dsn, application_name="somebody") as connection:
        connection.execute(statement)
        yield connection


def await_waiting(rig: Rig, lane: Future[Any]) -> None:
    """Until a session of the database waits for a lock."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(rig.target_dsn, autocommit=True) as looking:
        while looking.execute(waiting).fetchone() is None and not lane.done():
            continue


def opened(rig: Rig, statement: str) -> OpenedRun:
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')")
    rig.run()
    rig.write(statement)
    rig.capture("r")
    return rig.open("r")


@gated
@pytest.mark.parametrize("lock", variants(LOCKS, seldom=["a row", "positions"]))
@pytest.mark.parametrize("written", WRITES)
def test_a_lane_that_is_cancelled_while_it_waits_ends(rig: Rig, written: str, lock: str) -> None:
    rig = rig.having(channels=1)
    run = opened(rig, WRITES[written])
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as pool, locked(rig, LOCKS[lock]) as holder:
        lane = pool.submit(rig.lane, run, 0, cancelled=cancelled.is_set)
        await_waiting(rig, lane)
        (told,) = [found for found in read_status(rig.target, "p").warnings if found.where == "locks"]
        cancelled.set()
        with pytest.raises(Cancelled):
            lane.result(DEADLINE_SECONDS)
        assert told.what.startswith(("channel 0 waits for ", "a commit of all channels waits for "))
        assert f"session {holder.info.backend_pid} of role" in told.what
        assert "(somebody, idle in transaction, for " in told.what
    rig.run("r")
    assert rig.comparison().equal


def test_the_log_says_for_whom_a_lane_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(target_watch, "_LOOK_SECONDS", 0.1)
    rig = rig.having(channels=1)
    run = opened(rig, WRITES["merged"])
    with ThreadPoolExecutor(1) as pool, locked(rig, LOCKS["a table"]) as holder:
        lane = pool.submit(rig.lane, run, 0)
        told = f"channel 0 waits for t, which session {holder.info.backend_pid} of role"
        deadline = monotonic() + DEADLINE_SECONDS
        while not any(told in record.getMessage() for record in caplog.records):
            assert monotonic() < deadline
            sleep(0.01)
        holder.rollback()
        rig.close(run, [lane.result(DEADLINE_SECONDS).to_json()])
    assert rig.comparison().equal


@gated
def test_a_prepared_transaction_that_a_lane_waits_for_is_told(rig: Rig) -> None:
    rig = rig.having(channels=1)
    run = opened(rig, WRITES["merged"])
    with locked(rig, LOCKS["a table"]) as holder:
        holder.execute("PREPARE TRANSACTION 'stands'")
    with ThreadPoolExecutor(1) as pool, psycopg.connect(rig.target_dsn, autocommit=True) as ending:
        lane = pool.submit(rig.lane, run, 0)
        try:
            await_waiting(rig, lane)
            (told,) = [found for found in read_status(rig.target, "p").warnings if found.where == "locks"]
        finally:
            ending.execute("ROLLBACK PREPARED 'stands'")
        assert "waits for t, which a prepared transaction has locked" in told.what
        assert "pg_prepared_xacts" in told.note
        assert "parallel-apply recover" in told.note
        rig.close(run, [lane.result(DEADLINE_SECONDS).to_json()])
    assert rig.comparison().equal

"""The PostgreSQL backend beyond the queue's contract: its locks and its connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.queue import (
    Change,
    DependencyError,
    Insert,
    Queue,
    QueueUnavailable,
    open_queue,
)
from airflow_parallel_apply.queue.postgres import PostgresQueue, migrate
from airflow_parallel_apply.queue.postgres.connections import Connections
from airflow_parallel_apply.queue.postgres.modify import MAX_VALUE_BYTES
from airflow_parallel_apply.queue.postgres.statements import Statements
from tests.support.clusters import CopiedServer
from tests.support.variants import gated

LEASE = timedelta(minutes=5)
LONG = timedelta(seconds=120)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


@pytest.fixture
def queue(target_dsn: str) -> Iterator[PostgresQueue]:
    migrate(target_dsn)
    made = PostgresQueue(target_dsn)
    yield made
    made.close()


@pytest.fixture
def session(target_dsn: str) -> Iterator[psycopg.Connection]:
    """Somebody else in the same database, with a transaction open."""
    with psycopg.connect(target_dsn) as connection:
        yield connection
        connection.rollback()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"


def queue_sessions(dsn: str, *, waiting_for: str | None = None, last_statement: str = "%") -> list[int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'parallel_apply queue'"
            " AND datname = current_database() AND query LIKE %(statement)s"
            " AND (%(wait)s::text IS NULL OR wait_event_type = %(wait)s)",
            {"wait": waiting_for, "statement": last_statement},
        )
        return [pid for (pid,) in rows]


def end_sessions(dsn: str) -> None:
    pids = queue_sessions(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s::int[]) AS pid", [pids])


def unavailable(queue: Queue) -> bool:
    try:
        queue.queue_stats()
    except QueueUnavailable:
        return True
    return False


def put(queue: Queue, *inserts: Insert) -> None:
    queue.modify(claimant="maker", insert=inserts)


def test_a_locked_head_holds_up_a_strict_queue_and_a_spread_one_gives_the_next(
    queue: PostgresQueue, session: psycopg.Connection
) -> None:
    put(queue, *(Insert(queue="strict", sequence=n) for n in range(2)))
    put(queue, *(Insert(queue="spread", value=n, at=-timedelta(seconds=9 - n)) for n in range(2)))
    session.execute("SELECT FROM parallel_apply.task WHERE sequence = 0 OR value::text = '0' FOR UPDATE")
    assert queue.try_claim(["strict"], claimant="a", lease=LEASE) is None
    task = queue.try_claim(["spread"], claimant="a", lease=LEASE)
    assert task is not None
    assert task.value == 1


def test_a_waiting_claim_gets_what_a_rolled_back_transaction_had_locked(
    queue: PostgresQueue, session: psycopg.Connection, target_dsn: str
) -> None:
    """A rollback announces nothing; a head deleted in it is the head again."""
    put(queue, *(Insert(queue="q", sequence=n) for n in range(2)))
    session.execute("DELETE FROM parallel_apply.task WHERE sequence = 0")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, ["q"], claimant="a", lease=LEASE, timeout=LONG)
        until(lambda: bool(queue_sessions(target_dsn, last_statement="%AS coming%")))
        session.rollback()
        task = waiting.result(timeout=180)
    assert task is not None
    assert task.sequence == 0


def test_a_task_put_before_the_head_between_a_claims_two_looks_holds_the_head_up(
    queue: PostgresQueue, session: psycopg.Connection, target_dsn: str
) -> None:
    """EXCLUSIVE lets the claim read the head and stops it where it locks it: there the other one commits."""
    put(queue, Insert(queue="q", sequence=5))
    session.execute("LOCK TABLE parallel_apply.task IN EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as pool:
        claiming = pool.submit(queue.try_claim, ["q"], claimant="a", lease=LEASE)
        until(lambda: bool(queue_sessions(target_dsn, waiting_for="Lock")))
        session.execute(
            "INSERT INTO parallel_apply.task SELECT gen_random_uuid(), 'q', 4, 0, '9000-01-01', NULL, 0, 0, '', 'null',"
            " now(), now()"
        )
        session.commit()
        assert claiming.result(timeout=180) is None
    assert [(task.sequence, task.claims) for task in queue.tasks("q")] == [(4, 0), (5, 0)]


def test_listing_and_statistics_neither_wait_nor_make_wait(queue: PostgresQueue, session: psycopg.Connection) -> None:
    put(queue, Insert(queue="q", sequence=0))
    session.execute("UPDATE parallel_apply.task SET version = 77")
    assert [task.version for task in queue.tasks("q")] == [0]
    assert queue.queue_stats()[0].available == 1
    assert queue.wait_empty(timeout=timedelta(0)) is False


def test_a_lost_connection_is_unavailable_once_and_the_next_call_works(queue: PostgresQueue, target_dsn: str) -> None:
    put(queue, Insert(queue="q", value=1))
    end_sessions(target_dsn)
    with pytest.raises(QueueUnavailable, match="lost"):
        queue.tasks("q")
    assert [task.value for task in queue.tasks("q")] == [1]


def test_all_idle_connections_are_dropped_with_a_lost_one(queue: PostgresQueue, target_dsn: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: queue.wait_empty(exact=["x"], timeout=timedelta(0)), range(12)))
        waiting = [pool.submit(queue.claim, ["q"], claimant="a", lease=LEASE, timeout=LONG) for _ in range(2)]
        until(lambda: len(queue_sessions(target_dsn)) >= 2)
        put(queue, Insert(queue="q"), Insert(queue="q"))
        assert all(done.result(timeout=180) is not None for done in waiting)
    end_sessions(target_dsn)
    with pytest.raises(QueueUnavailable):
        queue.queue_stats()
    assert queue.queue_stats() != ()


def test_a_waiting_claim_whose_session_is_ended_is_unavailable(queue: PostgresQueue, target_dsn: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.claim, ["q"], claimant="a", lease=LEASE, timeout=LONG)
        until(lambda: bool(queue_sessions(target_dsn)))
        until(lambda: end_sessions(target_dsn) is None and waiting.done())
        with pytest.raises(QueueUnavailable):
            waiting.result(timeout=180)


def test_a_modify_that_loses_its_session_is_unavailable_and_did_nothing(
    queue: PostgresQueue, session: psycopg.Connection, target_dsn: str
) -> None:
    put(queue, Insert(queue="q", value="old"))
    (task,) = queue.tasks("q")
    session.execute("SELECT FROM parallel_apply.task FOR UPDATE")
    with ThreadPoolExecutor(1) as pool:
        modifying = pool.submit(
            queue.modify,
            claimant="a",
            insert=[Insert(queue="new")],
            change=[Change(ref=task.ref, value="new")],
        )
        until(lambda: bool(queue_sessions(target_dsn, waiting_for="Lock")))
        end_sessions(target_dsn)
        with pytest.raises(QueueUnavailable):
            modifying.result(timeout=180)
    session.rollback()
    assert queue.tasks("q") == (task,)
    assert queue.tasks("new") == ()


def test_a_client_that_is_stopped_inside_a_transaction_loses_its_session_and_its_locks(target_dsn: str) -> None:
    """As SIGSTOP would have it; the session's limit is shortened here, as its ten seconds would be long."""
    migrate(target_dsn)
    connections = Connections(target_dsn, Statements("parallel_apply"))
    with connections.use() as connection:
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("10s",)

    def stop_inside() -> None:
        with connections.use() as connection:
            connection.execute("SET idle_in_transaction_session_timeout = '20ms'")
            with connection.transaction():
                connection.execute("LOCK TABLE parallel_apply.task")
                until(lambda: not queue_sessions(target_dsn))
                connection.execute("DELETE FROM parallel_apply.task")

    with pytest.raises(QueueUnavailable, match="lost"):
        stop_inside()
    with connections.use() as connection:
        assert connection.execute("SELECT count(*) FROM parallel_apply.task").fetchone() == (0,)
    connections.close()


def test_a_killed_server_is_unavailable_and_keeps_tasks_and_claims_when_it_is_back(tmp_path: Path) -> None:
    with CopiedServer(tmp_path / "data") as server:
        dsn = server.dsn()
        migrate(dsn)
        queue = PostgresQueue(dsn)
        put(queue, Insert(queue="q", value=1), Insert(queue="q", value=2))
        claimed = queue.try_claim(["q"], claimant="a", lease=LEASE)
        assert claimed is not None
        server.kill()
        until(lambda: unavailable(queue))  # its backends answer until they have seen that their parent is gone
        assert unavailable(queue)
        server.start()
        assert len(queue.tasks("q")) == 2
        queue.modify(claimant="a", delete=[claimed.ref])
        with pytest.raises(DependencyError):
            queue.modify(claimant="a", delete=[claimed.ref])
        queue.close()


@gated
def test_an_older_server_holds_the_queue_too(tmp_path: Path) -> None:
    with CopiedServer(tmp_path / "data", version=16) as server:
        migrate(server.dsn())
        queue = open_queue(server.dsn())
        put(queue, Insert(queue="q", sequence=1), Insert(queue="spread"))
        task = queue.try_claim(["q"], claimant="a", lease=LEASE)
        assert task is not None
        renewed = queue.renew(task, claimant="a", lease=LEASE)
        queue.modify(claimant="a", delete=[renewed.ref])
        assert [stats.queue for stats in queue.queue_stats()] == ["spread"]
        queue.close()


def test_a_database_whose_transactions_are_serializable_by_default_makes_no_difference(
    queue: PostgresQueue, target_dsn: str
) -> None:
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
        connection.execute(f"ALTER DATABASE \"{name}\" SET timezone = 'Asia/Tokyo'")
    other = PostgresQueue(target_dsn)
    put(other, *(Insert(queue="q") for _ in range(20)))
    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(lambda _: other.claim(["q"], claimant="a", lease=LEASE, timeout=LONG), range(20)))
    assert len({task.task_id for task in claimed if task}) == 20
    assert {task.at.utcoffset() for task in claimed if task} == {timedelta(0)}
    other.close()


def test_a_value_that_is_no_json_is_refused_and_nothing_is_done(queue: PostgresQueue) -> None:
    with pytest.raises(ValueError, match="JSON"):
        put(queue, Insert(queue="q"), Insert(queue="q", value=float("nan")))
    assert queue.queue_stats() == ()


def test_the_first_tasks_of_a_queue_settle_its_kind_even_when_they_come_at_once(
    queue: PostgresQueue, session: psycopg.Connection, target_dsn: str
) -> None:
    """A modify that has judged its strict task and is stopped before it commits; a spread one that comes meanwhile."""
    session.execute("LOCK parallel_apply.task IN SHARE MODE")
    strict = Insert(queue="q", sequence=1)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(put, queue, strict)
        until(lambda: queue_sessions(target_dsn, waiting_for="Lock", last_statement="%INSERT INTO%") != [])
        second = pool.submit(put, queue, Insert(queue="q"))
        elsewhere = pool.submit(put, queue, Insert(queue="another"), Insert(queue="a third", sequence=1))
        until(lambda: len(queue_sessions(target_dsn, waiting_for="Lock")) == 3)
        session.rollback()
        first.result(timeout=120)
        elsewhere.result(timeout=120)
        with pytest.raises(DependencyError, match="strict and spread"):
            second.result(timeout=120)
    assert [task.sequence for task in queue.tasks("q")] == [1]


def test_spread_tasks_that_come_at_once_do_not_wait_for_each_other(
    queue: PostgresQueue, session: psycopg.Connection
) -> None:
    with psycopg.connect(session.info.dsn, password=session.info.password) as other:
        for connection in (session, other):
            connection.execute(
                Statements("parallel_apply")["settle_kinds"],
                {"schema": "parallel_apply", "queues": ["q"], "sequences": [None]},
            )
        other.rollback()
    put(queue, Insert(queue="q"))


@gated
def test_a_value_that_would_end_the_session_is_refused_by_its_size(queue: PostgresQueue) -> None:
    (task,) = queue.modify(claimant="maker", insert=[Insert(queue="q")])
    for more in (
        {"insert": [Insert(queue="q", value="x" * MAX_VALUE_BYTES)]},
        {"change": [Change(ref=task.ref, value="x" * MAX_VALUE_BYTES)]},
    ):
        with pytest.raises(ValueError, match=r"at most 67,108,864 bytes of JSON here, this one has 67,108,866"):
            queue.modify(claimant="maker", **more)
    assert queue.tasks("q") == (task,)

"""How the PostgreSQL backend connects: through a pooler, by a service file, to one of several servers, to a standby."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.queue import Insert, QueueMisconfigured, QueueUnavailable, open_queue
from airflow_parallel_apply.queue.open import look_at_queue, prepare_queue
from airflow_parallel_apply.queue.postgres import PostgresQueue, migrate
from airflow_parallel_apply.queue.postgres.statements import SCHEMA_VERSION
from tests.support.pooler import transaction_pooler
from tests.support.swallowing import swallowing_proxy
from tests.support.variants import gated

pytestmark = pytest.mark.usefixtures("new_sessions")

LEASE = timedelta(minutes=5)


@pytest.fixture
def dsn(target_dsn: str) -> str:
    migrate(target_dsn)
    return target_dsn


@pytest.fixture
def queue(dsn: str) -> Iterator[PostgresQueue]:
    with closing(PostgresQueue(dsn)) as opened:
        yield opened


def test_a_wait_through_a_pooler_that_shares_sessions_is_refused_at_once(
    dsn: str, target_server: PostgresServer
) -> None:
    with transaction_pooler(target_server.port) as port:
        through = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
        with closing(open_queue(through)) as queue:
            with pytest.raises(QueueMisconfigured, match=r"pooler in transaction mode.*Hint: .*session mode"):
                queue.claim(["q"], claimant="ann", lease=LEASE, timeout=timedelta(seconds=20))
            with pytest.raises(QueueMisconfigured, match="pooler in transaction mode"):
                queue.wait_empty(timeout=timedelta(seconds=20))


def test_a_pooler_that_shares_sessions_is_found_by_whoever_looks_or_makes_tables(
    dsn: str, target_server: PostgresServer
) -> None:
    look_at_queue(dsn)
    with transaction_pooler(target_server.port) as port:
        through = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
        for look in (look_at_queue, prepare_queue):
            with pytest.raises(QueueMisconfigured, match="pooler in transaction mode"):
                look(through)


def test_a_server_that_became_a_standby_is_unavailable_and_its_session_is_not_used_again(
    queue: PostgresQueue, dsn: str
) -> None:
    """A session that may not write stands for it: to its clients a standby looks the same."""
    queue.modify(claimant="maker", insert=[Insert(queue="q")])
    with psycopg.connect(dsn, autocommit=True) as other:
        before = {pid for (pid,) in other.execute(_SESSIONS)}
        (connection,) = queue._connections._idle
        connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(QueueUnavailable, match=r"takes no writes.*Hint: .*target_session_attrs=read-write"):
            queue.try_claim(["q"], claimant="ann", lease=LEASE)
        assert queue.try_claim(["q"], claimant="ann", lease=LEASE) is not None
        assert before.isdisjoint(pid for (pid,) in other.execute(_SESSIONS))


_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'parallel_apply queue' AND datname = current_database()"
)


@gated
def test_a_statement_that_something_on_the_way_swallows_is_given_up(dsn: str, target_server: PostgresServer) -> None:
    """TCP is content: what stands between has acknowledged it. An hour passes on the clock of the one who waits."""
    with swallowing_proxy(target_server.port) as proxy:
        through = make_conninfo(dsn, host="127.0.0.1", port=proxy.port, sslmode="disable")
        queue = PostgresQueue(through, clock=lambda: time.monotonic() + 3600 * proxy.swallows.is_set())
        with closing(queue):
            queue.modify(claimant="maker", insert=[Insert(queue="q")])
            proxy.swallows.set()
            told = "reached, but it has not answered for 60 s. Hint: .*a proxy, .*swallow"
            with pytest.raises(QueueUnavailable, match=told):
                queue.try_claim(["q"], claimant="ann", lease=LEASE)
            proxy.swallows.clear()
            assert queue.try_claim(["q"], claimant="ann", lease=LEASE) is not None


def test_a_service_file_and_a_server_that_is_gone_lead_to_the_one_that_takes_writes(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = conninfo_to_dict(dsn)
    both = {"host": f"127.0.0.1,{given['host']}", "port": f"{free_port()},{given.get('port', 5432)}"}
    with closing(open_queue(make_conninfo(dsn, **both, target_session_attrs="read-write"))) as several:
        assert several.queue_stats() == ()
    service = tmp_path / "services.conf"
    service.write_text("[queue]\n" + "".join(f"{name}={value}\n" for name, value in {**given, **both}.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    with closing(open_queue("service=queue")) as named:
        assert named.queue_stats() == ()


def test_tls_that_the_server_does_not_speak_is_told(dsn: str) -> None:
    with (
        closing(open_queue(make_conninfo(dsn, host="127.0.0.1", sslmode="require"))) as queue,
        pytest.raises(QueueUnavailable, match="SSL"),
    ):
        queue.queue_stats()


def test_tables_of_a_newer_release_are_not_called_up_to_date(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO parallel_apply.queue_version (version) VALUES (%s)", [SCHEMA_VERSION + 1])
    with pytest.raises(QueueMisconfigured, match=f"version {SCHEMA_VERSION + 1}.*Upgrade this package"):
        migrate(dsn)

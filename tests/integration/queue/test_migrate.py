"""The PostgreSQL backend's tables: who makes them, and what is said where they are missing or not to be had."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.queue import Insert, QueueMisconfigured, QueueUnavailable, open_queue
from airflow_parallel_apply.queue.postgres import PostgresQueue, migrate
from airflow_parallel_apply.queue.postgres.statements import SCHEMA_VERSION


def test_migrate_says_what_it_did_and_does_it_once(target_dsn: str) -> None:
    assert migrate(target_dsn, "Other Schema") == (
        "created schema Other Schema",
        *(f"migrated the queue's tables in schema Other Schema to version {n}" for n in range(1, SCHEMA_VERSION + 1)),
    )
    assert migrate(target_dsn, "Other Schema") == ()
    queue = PostgresQueue(target_dsn, schema="Other Schema")
    queue.modify(claimant="maker", insert=[Insert(queue="q")])
    assert queue.claim(["q"], claimant="a", lease=timedelta(minutes=5), timeout=timedelta(seconds=30)) is not None
    queue.close()


def test_migrates_at_once_make_the_tables_once(target_dsn: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: migrate(target_dsn), range(4)))
    assert sorted(line for lines in done for line in lines) == [
        "created schema parallel_apply",
        *(f"migrated the queue's tables in schema parallel_apply to version {n}" for n in range(1, SCHEMA_VERSION + 1)),
    ]


def test_operations_never_make_tables_and_say_how_to(target_dsn: str) -> None:
    with pytest.raises(QueueMisconfigured, match="queue migrate --schema 'a b'"):
        PostgresQueue(target_dsn, schema="a b").queue_stats()
    with psycopg.connect(target_dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('parallel_apply')").fetchone() == (None,)


def test_tables_of_another_version_are_refused(target_dsn: str) -> None:
    migrate(target_dsn)
    with psycopg.connect(target_dsn) as connection:
        connection.execute("INSERT INTO parallel_apply.queue_version (version) VALUES (99)")
    with pytest.raises(QueueMisconfigured, match="version 99"):
        PostgresQueue(target_dsn).queue_stats()


def test_an_event_trigger_that_refuses_the_tables_is_named_with_what_leads_on(target_dsn: str) -> None:
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no DDL here'; END$$"
        )
        connection.execute('CREATE EVENT TRIGGER "No DDL" ON ddl_command_start EXECUTE FUNCTION no()')
        with pytest.raises(QueueMisconfigured, match=r"no DDL here.*Hint: ") as refused:
            migrate(target_dsn)
        found = re.search(r"run (ALTER .*?) there", str(refused.value))
        assert found is not None
        connection.execute(found[1])
    assert migrate(target_dsn)


def test_a_missing_privilege_is_named(target_dsn: str, target_server: PostgresServer) -> None:
    migrate(target_dsn)
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS queue_stranger")
        connection.execute("CREATE ROLE queue_stranger LOGIN")
    stranger = target_dsn.replace("user=postgres", "user=queue_stranger")
    with pytest.raises(QueueMisconfigured, match="privilege"):
        PostgresQueue(stranger).queue_stats()
    with pytest.raises(QueueMisconfigured, match="privilege"):
        migrate(stranger, "new_schema")


def test_a_wrong_dsn_is_refused_without_showing_its_password() -> None:
    with pytest.raises(QueueMisconfigured) as refused:
        open_queue("postgresql://me:s3cret@host/db?no_such_option=s3cret")
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    queue = open_queue("postgresql://me:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in repr(queue)
    with pytest.raises(QueueUnavailable) as unreachable:
        queue.queue_stats()
    assert "s3cret" not in str(unreachable.value)
    assert "\n" not in str(unreachable.value)

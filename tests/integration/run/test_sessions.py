"""Sessions have the settings that the pipeline needs, whatever roles, databases and poolers make of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Consistency, Endpoint, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.source.postgres.session import LOCK_TIMEOUT
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.pipeline.target.postgres.session import Session as TargetSession
from airflow_parallel_apply.postgres.pooler import shares_sessions
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN, SettingsLost, settle
from airflow_parallel_apply.queue import QueueMisconfigured, open_queue
from airflow_parallel_apply.queue.postgres.connections import prepare_session
from tests.support.pooler import transaction_pooler
from tests.support.rig import Rig
from tests.support.variants import gated

pytestmark = pytest.mark.usefixtures("new_sessions")

SPOILED = {
    "datestyle": "German",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Tokyo",
    "extra_float_digits": "-3",
    "bytea_output": "escape",
    "xmloption": "document",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "statement_timeout": "50s",
    "lock_timeout": "50s",
    "idle_in_transaction_session_timeout": "50s",
    "idle_session_timeout": "50s",
    "transaction_timeout": "50s",
    "exit_on_error": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "jit": "on",
}


def spoiled(dsn: str) -> Endpoint:
    """A database whose every session begins with other settings."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        name = connection.info.dbname
        for setting, value in SPOILED.items():
            connection.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    return Endpoint(conn_id="source", url=dsn)


def expected(**others: str) -> list[tuple[str, str]]:
    return sorted(
        {name: value for name, value in {**EXACT, **LASTING, **PLAIN, **others}.items() if name in SPOILED}.items()
    )


def test_no_default_of_a_database_reaches_a_session(source_dsn: str) -> None:
    endpoint = spoiled(source_dsn)
    at_source = expected(lock_timeout=LOCK_TIMEOUT)
    names = ", ".join(f"'{name}'" for name in SPOILED)
    query = "SELECT name::text, current_setting(name) FROM unnest(ARRAY[" + names + "]) name ORDER BY name"
    with closing(SourceSession(endpoint, application_name="test")) as source:
        assert source.catalog().execute(query).fetchall() == at_source
        with closing(source.replication()) as replication:
            assert replication.execute(query).fetchall() == at_source
        texts = f"SELECT convert_to(name || ' = ' || current_setting, 'UTF8') FROM ({query})"
        streamed = [text.decode() for batch in source.stream(texts, batch_bytes=100) for text in batch.to_pylist()]
        assert streamed == [f"{name} = {value}" for name, value in at_source]
        with closing(source.stream(texts, batch_bytes=1)) as first:
            next(first)
            # One that is read from answers nothing else.
            assert source.catalog().execute(query).fetchall() == at_source
    with closing(TargetSession(source_dsn, pipeline="p")) as target:
        assert target.connection().execute(query).fetchall() == expected()
    with psycopg.connect(source_dsn, autocommit=True) as connection:
        prepare_session(connection)
        assert connection.execute(query).fetchall() == expected(idle_in_transaction_session_timeout="10s")


def test_a_server_notices_soon_that_a_session_has_no_host_any_more(source_dsn: str) -> None:
    with psycopg.connect(source_dsn, autocommit=True) as connection:
        settle(lambda query: connection.execute(query).fetchall(), PLAIN)
        assert connection.execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)


@pytest.mark.parametrize(
    ("limit", "slow", "is_told"),
    [
        ("statement_timeout", 3, False),
        ("statement_timeout", 100, True),
        ("transaction_timeout", 1, True),
    ],
)
def test_a_limit_is_lifted_by_a_first_statement_that_is_over_it_or_told(
    source_dsn: str, limit: str, slow: int, is_told: bool
) -> None:
    pauses = iter(["10"] * slow)

    def run(query: str) -> list[tuple[Any, ...]]:
        connection.execute("SELECT pg_sleep(%s::int)", [next(pauses, "0")])
        return connection.execute(query).fetchall()

    with psycopg.connect(source_dsn, autocommit=True, options=f"-c {limit}=50ms") as connection:
        if not is_told:
            settle(run, LASTING)
            assert connection.execute(f"SHOW {limit}").fetchone() == ("0",)
            return
        with pytest.raises(SettingsLost, match="over before it begins") as told:
            settle(run, LASTING)
        assert limit in told.value.hint


def test_a_statement_that_is_cancelled_within_a_transaction_is_told_as_such(source_dsn: str) -> None:
    def run(query: str) -> list[tuple[Any, ...]]:
        connection.execute("SELECT pg_sleep(60)")
        return connection.execute(query).fetchall()

    with psycopg.connect(source_dsn, autocommit=True) as connection, connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            settle(run, EXACT)


def test_a_pooler_in_transaction_mode_is_told_from_a_server(source_server: PostgresServer, source_dsn: str) -> None:
    def shares(dsn: str) -> bool:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return shares_sessions(connection, lambda: psycopg.connect(dsn, autocommit=True))

    assert not shares(source_dsn)
    with transaction_pooler(source_server.port) as port:
        assert shares(source_dsn.replace(f"port={source_server.port}", f"port={port}"))


@gated
def test_a_first_run_that_a_pooler_refused_leaves_no_lock_behind(rig: Rig, target_server: PostgresServer) -> None:
    rig = rig.having(start=Start.COPY)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    with transaction_pooler(target_server.port) as port:
        pooled = replace(rig, target_dsn=make_conninfo(rig.target_dsn, port=port))
        with pytest.raises(ConfigurationError, match="a pooler in transaction mode"):
            pooled.prepare()
        rig.prepare()


@gated
@pytest.mark.parametrize("consistency", [Consistency.CHANNEL, Consistency.EPOCH])
def test_sessions_that_a_pooler_keeps_hold_nothing_that_others_need(
    rig: Rig, consistency: Consistency, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler in session mode resets a session behind its client, which leaves a replication origin to it."""
    kept: list[psycopg.Connection[Any]] = []
    close = psycopg.Connection.close

    def keep(connection: psycopg.Connection[Any]) -> None:
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            close(connection)
        elif connection not in kept:
            connection.autocommit = True
            connection.execute("DISCARD ALL")
            kept.append(connection)

    rig = rig.having(consistency=consistency, channels=4, epoch_max_changes=50)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    try:
        monkeypatch.setattr(psycopg.Connection, "close", keep)
        for first in (1, 501):
            rig.write(f"INSERT INTO t SELECT generate_series({first}, {first} + 499)")
            rig.run()
        assert len(kept) > 4
        assert rig.comparison().equal
    finally:
        monkeypatch.undo()
        for connection in kept:
            connection.close()


@pytest.mark.parametrize(
    "change", ["ALTER ROLE {role} NOLOGIN", "DROP ROLE {role}", "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC"]
)
def test_a_role_that_the_server_does_not_let_in_is_told_from_a_server_that_is_away(
    source_dsn: str, change: str
) -> None:
    database = str(conninfo_to_dict(source_dsn)["dbname"])
    role = f"guest_of_{database}"
    with psycopg.connect(source_dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        owner.execute(change.format(role=role, database=database))
        dsn = make_conninfo(source_dsn, user=role)
        session = SourceSession(Endpoint(conn_id="source", url=dsn), application_name="test")
        with (
            closing(session),
            pytest.raises(ConfigurationError, match=r"refuses the login.* may log in"),
            session.errors("prepare"),
        ):
            session.catalog()
        target = TargetSession(dsn, pipeline="p")
        with (
            closing(target),
            pytest.raises(ConfigurationError, match=r"cannot connect.* may log in"),
            target.errors("prepare"),
        ):
            target.connection()
        with (
            closing(open_queue(dsn)) as queue,
            pytest.raises(QueueMisconfigured, match=r"refuses the login.* may log in"),
        ):
            queue.queue_stats()
        owner.execute(f"GRANT CONNECT ON DATABASE {database} TO PUBLIC")
        owner.execute(f"DROP ROLE IF EXISTS {role}")


def test_a_pooler_without_replication_connections_or_resets_is_told_of(source_dsn: str) -> None:
    session = SourceSession(Endpoint(conn_id="source", url=source_dsn), application_name="test")
    with (
        closing(session),
        pytest.raises(ConfigurationError, match=r"PgBouncer 1\.23 or later does"),
        session.errors("prepare"),
    ):
        raise psycopg.OperationalError("connection failed: FATAL:  unsupported startup parameter: replication")
    with closing(session):
        session.catalog().execute("PREPARE one AS SELECT 1")
        with pytest.raises(ConfigurationError, match="server_reset_query"), session.errors("capture"):
            session.catalog().execute("PREPARE one AS SELECT 1")
    told = translate(psycopg.errors.DuplicatePreparedStatement("prepared statement exists"), op="commit")
    assert "server_reset_query" in (told.hint or "")

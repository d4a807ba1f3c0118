"""Sessions have the settings that the pipeline needs, whatever roles, databases and poolers make of them."""

from __future__ import annotations

from contextlib import closing

import psycopg

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.session import Session as TargetSession
from airflow_parallel_apply.postgres.pooler import shares_sessions
from airflow_parallel_apply.postgres.settings import EXACT, LASTING, PLAIN
from airflow_parallel_apply.queue.postgres.connections import prepare_session
from tests.support.pooler import transaction_pooler

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
    names = ", ".join(f"'{name}'" for name in SPOILED)
    query = "SELECT name::text, current_setting(name) FROM unnest(ARRAY[" + names + "]) name ORDER BY name"
    with closing(SourceSession(endpoint, application_name="test")) as source:
        assert source.catalog().execute(query).fetchall() == expected()
        with closing(source.replication()) as replication:
            assert replication.execute(query).fetchall() == expected()
        texts = f"SELECT convert_to(name || ' = ' || current_setting, 'UTF8') FROM ({query})"
        streamed = [text.decode() for batch in source.stream(texts, batch_bytes=100) for text in batch.to_pylist()]
        assert streamed == [f"{name} = {value}" for name, value in expected()]
        with closing(source.stream(texts, batch_bytes=1)) as first:
            next(first)
            # One that is read from answers nothing else.
            assert source.catalog().execute(query).fetchall() == expected()
    with closing(TargetSession(source_dsn, pipeline="p", schema="parallel_apply")) as target:
        assert target.connection().execute(query).fetchall() == expected()
    with psycopg.connect(source_dsn, autocommit=True) as connection:
        prepare_session(connection)
        assert connection.execute(query).fetchall() == expected(idle_in_transaction_session_timeout="10s")


def test_a_pooler_in_transaction_mode_is_told_from_a_server(source_server: PostgresServer, source_dsn: str) -> None:
    def shares(dsn: str) -> bool:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return shares_sessions(connection, lambda: psycopg.connect(dsn, autocommit=True))

    assert not shares(source_dsn)
    with transaction_pooler(source_server.port) as port:
        assert shares(source_dsn.replace(f"port={source_server.port}", f"port={port}"))

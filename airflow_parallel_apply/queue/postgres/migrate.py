"""Create or upgrade the queue's tables; the only code of the queue that changes a schema."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.raising import event_trigger_of
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured, QueueUnavailable
from airflow_parallel_apply.queue.postgres.answering import connect
from airflow_parallel_apply.queue.postgres.connections import (
    conninfo,
    line,
    prepare_session,
    require_own_session,
    translated,
)
from airflow_parallel_apply.queue.postgres.statements import DEFAULT_SCHEMA, SCHEMA_VERSION, Statements

_MAX_RACES: Final = 5


def migrate(dsn: str, schema: str = DEFAULT_SCHEMA) -> tuple[str, ...]:
    """Bring the tables to this code's version, in one transaction; a line for each thing done, none when up to date.

    Several at once are in order: an advisory lock lets them in one after the other.
    """
    statements = Statements(schema)
    try:
        with connect(conninfo(dsn)) as connection:
            prepare_session(connection)
            require_own_session(connection, conninfo(dsn))
            try:
                return (*_create_schema(connection, schema), *_upgrade(connection, statements))
            except psycopg.Error as error:
                trigger = None if connection.closed else event_trigger_of(connection, error)
                if trigger is None:
                    raise
                raise QueueMisconfigured(
                    f"the event trigger {trigger} of the queue's database refuses its tables: {line(error)}. Hint: Let "
                    f"it pass over the schema {schema}. Or run ALTER EVENT TRIGGER {quoted(trigger)} DISABLE there; "
                    "then run again."
                ) from error
    except psycopg.Error as error:
        raise translated(error, schema) from error


def _create_schema(connection: psycopg.Connection[Any], schema: str) -> tuple[str, ...]:
    """Others may create the same schema for other tables, without our lock: then its name is a unique violation."""
    for _ in range(_MAX_RACES):
        # Looked up first: IF NOT EXISTS asks for the right to create schemas, even where it is there.
        found = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchone()
        if found is not None:
            return ()
        try:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema):
            continue
        return (f"created schema {schema}",)
    raise QueueUnavailable(f"schema {schema} comes and goes while it is being created")


def _upgrade(connection: psycopg.Connection[Any], statements: Statements) -> tuple[str, ...]:
    done = []
    with connection.transaction():
        lock = f"parallel_apply queue {statements.schema}"
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
        connection.execute(statements["version_table"])
        row = connection.execute(statements["version"]).fetchone()
        if row is None:
            raise QueueError("the queue's version cannot be read")
        if row[0] > SCHEMA_VERSION:
            raise QueueMisconfigured(
                f"the queue's tables in schema {statements.schema} have version {row[0]}, this code knows "
                f"{SCHEMA_VERSION}. Hint: Upgrade this package."
            )
        for number, text in statements.migrations(above=row[0]):
            connection.execute(text)
            connection.execute(
                sql.SQL("INSERT INTO {}.queue_version (version) VALUES (%s)").format(sql.Identifier(statements.schema)),
                [number],
            )
            done.append(f"migrated the queue's tables in schema {statements.schema} to version {number}")
    return tuple(done)

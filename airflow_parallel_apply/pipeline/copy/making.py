"""Makes at the target what `definitions` read at the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.copy.definitions import Addition, Definitions, SequenceDefinition
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session

_INDEX_SESSIONS: Final = 4
_INDEX_MEMORY: Final = "256MB"
"""Of each of these sessions."""


def make_tables(connection: Connection, definitions: Definitions) -> tuple[int, ...]:
    """Schemas, types, sequences, tables, inside the caller's transaction; the oids of the tables, without partitions.

    Errors: psycopg's own.
    """
    for schema in definitions.schemas:
        if not _is_there(connection, "to_regnamespace(quote_ident(%s))", schema):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    for kind in definitions.types:
        if not _is_there(connection, "to_regtype(format('%%I.%%I', %s::text, %s::text))", kind.schema, kind.name):
            connection.execute(kind.text.encode())
    serials = [sequence for sequence in definitions.sequences if not sequence.is_identity]
    for sequence in serials:
        create = sql.SQL("CREATE SEQUENCE IF NOT EXISTS {} ").format(sql.Identifier(sequence.schema, sequence.name))
        connection.execute(create.as_bytes(connection) + sequence.text.encode())
    for table in definitions.tables:
        connection.execute(table.text.encode())
    for sequence in serials:
        connection.execute(
            sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(
                sql.Identifier(sequence.schema, sequence.name), sql.Identifier(*sequence.table, sequence.column)
            )
        )
    return tuple(
        _one(
            connection, "SELECT format('%%I.%%I', %s::text, %s::text)::regclass::oid::bigint", table.schema, table.table
        )
        for table in definitions.tables
        if not table.is_partition
    )


def make_rest(connection: Connection, definitions: Definitions) -> None:
    """Everything else, inside the caller's transaction: on empty tables, to see whether it can be."""
    for addition in (*definitions.indexes, *definitions.checks, *definitions.ties):
        _add(connection, addition)


def make_rest_after_load(
    open_session: Callable[[], Session],
    definitions: Definitions,
    values: Sequence[tuple[SequenceDefinition, int, bool]],
) -> None:
    """Everything else, each in a transaction of its own: indexes of several tables at a time, the largest works last.

    Errors: the pipeline's.
    """
    by_table: dict[tuple[str, str], list[Addition]] = {}
    for addition in definitions.indexes:
        by_table.setdefault(addition.table, []).append(addition)
    with ThreadPoolExecutor(max_workers=_INDEX_SESSIONS, thread_name_prefix="index") as pool:
        works = [pool.submit(_add_all, open_session, additions) for additions in by_table.values()]
        for work in works:
            work.result()
    _add_all(open_session, (*definitions.checks, *definitions.ties))
    with closing(open_session()) as session, session.errors("make tables"):
        connection = session.connection()
        for sequence, value, is_called in values:
            connection.execute(
                "SELECT setval(pg_get_serial_sequence(format('%%I.%%I', %s::text, %s::text), %s), %s, %s)",
                [*sequence.table, sequence.column, value, is_called],
            )


def _add_all(open_session: Callable[[], Session], additions: Sequence[Addition]) -> None:
    with closing(open_session()) as session, session.errors("make indexes"):
        connection = session.connection()
        connection.execute(sql.SQL("SET maintenance_work_mem = {}").format(sql.Literal(_INDEX_MEMORY)))
        for addition in additions:
            _add(connection, addition)


def _add(connection: Connection, addition: Addition) -> None:
    """A foreign key to a table that the target does not have is left out: nobody follows that table."""
    if addition.needs is None or _is_there(connection, "to_regclass(%s)", addition.needs):
        connection.execute(addition.text.encode())


def _is_there(connection: psycopg.Connection[Any], expression: str, *values: str) -> bool:
    return bool(_one(connection, f"SELECT {expression} IS NOT NULL", *values))


def _one(connection: psycopg.Connection[Any], query: str, *values: str) -> Any:
    row = connection.execute(query.encode(), list(values)).fetchone()
    return row[0] if row is not None else None

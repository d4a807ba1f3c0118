"""Makes at the target what `definitions` read at the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.copy.postgres.definitions import Addition, Definitions, SequenceDefinition
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.wording import wording
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session

_STATEMENTS_AT_ONCE: Final = 200
_LACKING: Final = (
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
)
"""The target lacks something that a definition names."""
_INDEX_SESSIONS: Final = 4
_INDEX_MEMORY: Final = "256MB"
"""Memory of each of these sessions."""


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
    create = sql.SQL("CREATE SEQUENCE {} ")
    _execute_all(
        connection,
        [
            create.format(sql.Identifier(one.schema, one.name)).as_bytes(connection) + one.text.encode()
            for one in serials
        ],
    )
    _execute_all(connection, [table.text.encode() for table in definitions.tables])
    own = sql.SQL("ALTER SEQUENCE {} OWNED BY {}")
    _execute_all(
        connection,
        [
            own.format(sql.Identifier(one.schema, one.name), sql.Identifier(*one.table, one.column)).as_bytes(
                connection
            )
            for one in serials
        ],
    )
    made = [table for table in definitions.tables if not table.is_partition]
    rows = connection.execute(
        "SELECT format('%%I.%%I', w.schema, w.name)::regclass::oid::bigint "
        "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS w (schema, name, number) ORDER BY w.number",
        [[table.schema for table in made], [table.table for table in made]],
    )
    return tuple(oid for (oid,) in rows)


def make_rest(connection: Connection, definitions: Definitions) -> None:
    """Everything else, inside the caller's transaction. Errors: psycopg's own."""
    additions = (*definitions.indexes, *definitions.checks, *definitions.references, *definitions.ties)
    _execute_all(connection, [addition.text.encode() for addition in possible(connection, additions)])


def rehearse_making(connection: Connection, definitions: Definitions) -> None:
    """Make all of it without rows, in a transaction that the caller rolls back. Errors: `ConfigurationError` for names
    that are taken, and for what the definitions use and the target lacks; psycopg's own.
    """
    try:
        make_tables(connection, definitions)
        make_rest(connection, definitions)
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as error:
        raise ConfigurationError(
            f"the tables cannot be made at the target: {wording(error)[0]}",
            hint="Drop what has that name at the target, or rename it; then run again.",
        ) from error
    except _LACKING as error:
        raise ConfigurationError(
            f"the tables cannot be made at the target: {wording(error)[0]}",
            hint="Make there what the source's definitions use (the function, collation, or extension with a type), or "
            "make the tables by hand without it; then run again.",
        ) from error


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
    works = SimpleQueue[Sequence[Addition]]()
    for additions in by_table.values():
        works.put(additions)
    with ThreadPoolExecutor(max_workers=_INDEX_SESSIONS, thread_name_prefix="index") as pool:
        workers = [pool.submit(_add_waiting, open_session, works) for _ in range(min(_INDEX_SESSIONS, works.qsize()))]
        for worker in workers:
            worker.result()
    _add_all(open_session, (*definitions.checks, *definitions.references, *definitions.ties))
    with closing(open_session()) as session, session.errors("make tables"):
        set_sequences(session.connection(), values)


def set_sequences(connection: Connection, values: Sequence[tuple[SequenceDefinition, int, bool]]) -> None:
    """Each at its value, as `sequence_value` has it. Errors: psycopg's own."""
    connection.cursor().executemany(
        "SELECT setval(pg_get_serial_sequence(format('%%I.%%I', %s::text, %s::text), %s), %s, %s)",
        [[*sequence.table, sequence.column, value, is_called] for sequence, value, is_called in values],
    )


def _add_waiting(open_session: Callable[[], Session], works: SimpleQueue[Sequence[Addition]]) -> None:
    """One table's after another's, until none is left."""
    with closing(open_session()) as session, session.errors("make indexes"), suppress(Empty):
        connection = session.connection()
        connection.execute(sql.SQL("SET maintenance_work_mem = {}").format(sql.Literal(_INDEX_MEMORY)))
        while True:
            for addition in works.get_nowait():
                connection.execute(addition.text.encode())


def _add_all(open_session: Callable[[], Session], additions: Sequence[Addition]) -> None:
    with closing(open_session()) as session, session.errors("make indexes"):
        connection = session.connection()
        connection.execute(sql.SQL("SET maintenance_work_mem = {}").format(sql.Literal(_INDEX_MEMORY)))
        for addition in possible(connection, additions):
            connection.execute(addition.text.encode())


def possible(connection: Connection, additions: Sequence[Addition]) -> list[Addition]:
    """Those without foreign keys to tables that the target lacks: nobody follows these. Errors: psycopg's own."""
    needed = [addition.needs for addition in additions if addition.needs is not None]
    query = "SELECT w FROM unnest(%s::text[]) w WHERE to_regclass(w) IS NOT NULL"
    there = {name for (name,) in connection.execute(query, [needed])} if needed else set()
    return [addition for addition in additions if addition.needs is None or addition.needs in there]


def _execute_all(connection: Connection, statements: Sequence[bytes]) -> None:
    """Several statements to the server at once. Errors: psycopg's own, the first one's."""
    for first in range(0, len(statements), _STATEMENTS_AT_ONCE):
        connection.execute(b";\n".join(statements[first : first + _STATEMENTS_AT_ONCE]))


def _is_there(connection: psycopg.Connection[Any], expression: str, *values: str) -> bool:
    return bool(_one(connection, f"SELECT {expression} IS NOT NULL", *values))


def _one(connection: psycopg.Connection[Any], query: str, *values: str) -> Any:
    row = connection.execute(query.encode(), list(values)).fetchone()
    return row[0] if row is not None else None

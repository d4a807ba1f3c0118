"""Queries rows of tables that are known by their oids, whatever their names are by now.

The server looks up a table that a query names in the catalog of that moment, whatever the transaction's snapshot is. A
lock keeps the table's own name; it does not keep that of its schema. So the name is looked up as late as possible. The
lock that the transaction holds afterwards proves which table was read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.protocol import SourceChanged

Name = tuple[str, str]
_LONGEST_LOOK: Final = "60s"

_NAMES_NOW: Final = r"""
SELECT o.oid::bigint, pg_catalog.parse_ident(o.name)
FROM (SELECT oid, oid::regclass::text AS name FROM unnest(%s::bigint[]::oid[]) AS t (oid) OFFSET 0) AS o
WHERE CASE WHEN o.name ~ '^\d+$' THEN false ELSE true END
"""
"""Output of `regclass` has the names of now, where a query on the catalog has those of the snapshot. What is gone is
only a number.
"""
_NAMES_THEN: Final = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::bigint[]::oid[])
"""
_THEN: Final = """
SELECT c.oid::bigint
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_UNREAD: Final = """
SELECT unnest(%s::bigint[]::oid[])
EXCEPT
SELECT l.relation
FROM pg_catalog.pg_locks l
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.granted AND l.locktype = 'relation'
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
LIMIT 1
"""


def names_now(connection: psycopg.Connection[Any], oids: Collection[int]) -> Mapping[int, Name]:
    """Schemas and names by oid, without tables that are gone. Errors: psycopg's own."""
    return {oid: (schema, table) for oid, (schema, table) in connection.execute(_NAMES_NOW, [[*oids]])}


def names_then(connection: psycopg.Connection[Any], oids: Collection[int]) -> dict[int, Name]:
    """The same in the snapshot of the connection's transaction. Errors: psycopg's own."""
    return {oid: (schema, table) for oid, schema, table in connection.execute(_NAMES_THEN, [[*oids]])}


def oid_then(connection: psycopg.Connection[Any], name: Name) -> int | None:
    """The oid of the table that has a name in the snapshot of the connection's transaction. Errors: psycopg's own."""
    found = connection.execute(_THEN, name).fetchone()
    return None if found is None else int(found[0])


def has_read(connection: psycopg.Connection[Any], oids: Collection[int]) -> bool:
    """True if the connection's transaction has read, or locked, each of these tables. Errors: psycopg's own."""
    return connection.execute(_UNREAD, [[*oids]]).fetchone() is None


@contextmanager
def own_name(session: Session, oid: int | None, name: str, *, op: str) -> Iterator[Name]:
    """The name of a table, for a query inside the block, in the transaction of the session's catalog connection.
    `name`: as people know it. Errors: `SourceChanged` where the transaction has not read this table then.
    """
    with session.errors(op):
        now = None if oid is None else names_now(session.catalog(), [oid]).get(oid)
    if oid is None or now is None:
        raise renamed([name], op=op)
    yield now
    with session.errors(op):
        if not has_read(session.catalog(), [oid]):
            raise renamed([name], op=op)


def renamed(names: Sequence[str], *, op: str) -> SourceChanged:
    """The error for tables of which one got another name, or its schema did, between two statements."""
    return SourceChanged(
        f"a table, or its schema, was renamed while it was read: {listed([*names])}",
        op=op,
        hint="It is tried again by itself; let migrations end first.",
    )


def asked(connection: psycopg.Connection[Any], oid: int, question: sql.SQL, **values: sql.Composable) -> bool | None:
    """The answer to a yes-or-no question about a table's rows; the question calls the table `{table}`. `values`: what
    else it names. None if the table is gone, may not be read, or lost its name to another one meanwhile, or if the
    answer takes longer than a minute. Errors: psycopg's own.
    """
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(_LONGEST_LOOK)))
            name = names_now(connection, [oid]).get(oid)
            if name is None:
                return None
            found = connection.execute(question.format(table=sql.Identifier(*name), **values)).fetchone()
            return bool(found[0]) if found is not None and has_read(connection, [oid]) else None
    except (psycopg.errors.QueryCanceled, psycopg.ProgrammingError):
        return None

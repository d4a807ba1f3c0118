"""Asks for the rows of tables that are known by their oids, under whatever names they have by now.

The server looks up a table that a query names in the catalog of that moment, whatever the transaction's snapshot is. A
lock keeps the table's own name; it does not keep that of its schema. So the name is looked up as late as possible. The
lock that the transaction has afterwards proves which table was read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

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
_UNREAD: Final = """
SELECT FROM unnest(%s::bigint[]::oid[]) AS t (oid)
WHERE NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_locks l
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.granted AND l.locktype = 'relation' AND l.relation = t.oid
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
)
LIMIT 1
"""


def names_now(connection: psycopg.Connection[Any], oids: Collection[int]) -> Mapping[int, Name]:
    """Schemas and names by oid, without tables that are gone. Errors: psycopg's own."""
    return {oid: (schema, table) for oid, (schema, table) in connection.execute(_NAMES_NOW, [[*oids]])}


def has_read(connection: psycopg.Connection[Any], oids: Collection[int]) -> bool:
    """True if the connection's transaction has read, or locked, each of these tables. Errors: psycopg's own."""
    return connection.execute(_UNREAD, [[*oids]]).fetchone() is None


def asked(connection: psycopg.Connection[Any], oid: int, question: sql.SQL, **values: sql.Composable) -> bool | None:
    """The answer to a yes-or-no question about a table's rows, which calls it `{table}`. `values`: what else it
    names. None: it is gone, may not be
    read, lost its name to another one meanwhile, or the answer takes longer than a minute. Errors: psycopg's own.
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

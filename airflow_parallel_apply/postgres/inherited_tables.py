"""The tables of a database that inherit from others, but for partitions: `ancestors`."""

from __future__ import annotations

from typing import Any, Final

import psycopg

Name = tuple[str, str]
_QUERY: Final = """
WITH RECURSIVE above (child, parent) AS (
    SELECT i.inhrelid, i.inhparent
    FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition AND c.relkind IN ('r', 'p', 'f')
    UNION
    SELECT a.child, i.inhparent
    FROM above a
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.parent
)
SELECT cn.nspname::text, c.relname::text, pn.nspname::text, p.relname::text
FROM above a
JOIN pg_catalog.pg_class c ON c.oid = a.child
JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = a.parent
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
"""


def ancestors(connection: psycopg.Connection[Any]) -> frozenset[tuple[Name, Name]]:
    """Each table with each one above it, however far, by names. Errors: psycopg's own."""
    return frozenset(
        ((child_schema, child), (parent_schema, parent))
        for child_schema, child, parent_schema, parent in connection.execute(_QUERY).fetchall()
    )

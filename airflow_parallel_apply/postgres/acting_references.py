"""The foreign keys of a database that act, in the server's own words: `acting_references`."""

from __future__ import annotations

from typing import Any, Final

import psycopg

_QUERY: Final = """
SELECT
    k.conname::text,
    cn.nspname::text,
    c.relname::text,
    hn.nspname::text,
    h.relname::text,
    pn.nspname::text,
    p.relname::text,
    rn.nspname::text,
    r.relname::text,
    (
        SELECT array_agg(ARRAY[own.attname::text, other.attname::text])
        FROM unnest(k.conkey, k.confkey) AS pair (own, other)
        JOIN pg_catalog.pg_attribute own ON own.attrelid = k.conrelid AND own.attnum = pair.own
        JOIN pg_catalog.pg_attribute other ON other.attrelid = k.confrelid AND other.attnum = pair.other
    ),
    CASE k.confdeltype WHEN 'c' THEN 'cascade' WHEN 'n' THEN 'set null' WHEN 'd' THEN 'set default' ELSE '' END,
    CASE k.confupdtype WHEN 'c' THEN 'cascade' WHEN 'n' THEN 'set null' WHEN 'd' THEN 'set default' ELSE '' END,
    ARRAY(
        SELECT a.attname::text
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = k.conrelid AND to_jsonb(k) -> 'confdelsetcols' @> to_jsonb(a.attnum)
    )
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class h ON h.oid = k.conrelid
JOIN pg_catalog.pg_namespace hn ON hn.oid = h.relnamespace
JOIN pg_catalog.pg_class c ON c.oid = coalesce(pg_catalog.pg_partition_root(k.conrelid), k.conrelid)
JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = coalesce(pg_catalog.pg_partition_root(k.confrelid), k.confrelid)
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = k.confrelid
JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
    AND coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true) -- Known from version 18 on.
ORDER BY 2, 3, 1
"""


def acting_references(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """By the names of partitioned tables where a partition refers, or is referred to. Errors: psycopg's own."""
    return [
        {
            "name": name,
            "child": (child_schema, child),
            "holder": (holder_schema, holder),
            "parent": (parent_schema, parent),
            "referred": (referred_schema, referred),
            "columns": frozenset((own, other) for own, other in columns),
            "on_delete": on_delete,
            "on_update": on_update,
            "emptied": frozenset(emptied),
        }
        for (
            name,
            child_schema,
            child,
            holder_schema,
            holder,
            parent_schema,
            parent,
            referred_schema,
            referred,
            columns,
            on_delete,
            on_update,
            emptied,
        ) in connection.execute(_QUERY).fetchall()
    ]

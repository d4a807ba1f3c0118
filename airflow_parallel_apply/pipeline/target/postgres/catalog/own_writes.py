"""Tells what this transaction has written, rows or entries of the catalog, from what others have committed."""

from __future__ import annotations

from typing import Final

from psycopg import sql

_IS_OURS: Final = """(pg_catalog.age({0}) <= 0 AND (
    SELECT CASE
        WHEN behind.count = 0 THEN true
        WHEN behind.count > 2147483647 THEN false
        WHEN own.id + behind.count < own.unknown
        THEN pg_catalog.pg_xact_status((own.id + behind.count)::text::xid8) = 'in progress'
        ELSE own.id + behind.count < own.unknown + 16777216
    END
    FROM (
        SELECT
            pg_catalog.pg_current_xact_id()::text::bigint,
            pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint
    ) AS own (id, unknown)
    CROSS JOIN LATERAL (SELECT ({0}::text::bigint - own.id) & 4294967295) AS behind (count)
))"""
"""An id has no epoch here. One of the two thousand million behind the transaction's may be a savepoint's, or that of
another who began later: what he has written is visible once he has ended, and what is visible and in progress is ours.
Of an id that the snapshot does not know yet the server tells nothing, and nobody else's is visible. Only ids that come
soon count as such: a row that was frozen long ago keeps an id that may look like any. The age is asked first, which
costs little: that of ours is never above zero.
"""


def is_ours(xmin: sql.Composable) -> sql.Composed:
    """The condition, on the `xmin` of a row."""
    return sql.SQL(_IS_OURS).format(xmin)

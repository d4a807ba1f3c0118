"""Tells what this transaction has written, rows or entries of the catalog, from what others have committed."""

from __future__ import annotations

from typing import Final

from psycopg import sql

_IS_OURS: Final = """(pg_catalog.age({0}) <= 0 AND (
    SELECT CASE
        WHEN behind.count = 0 THEN true
        WHEN behind.count > 2147483647 THEN false
        WHEN own.id + behind.count < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint
        THEN pg_catalog.pg_xact_status((own.id + behind.count)::text::xid8) = 'in progress'
        ELSE true
    END
    FROM (SELECT pg_catalog.pg_current_xact_id()::text::bigint) AS own (id)
    CROSS JOIN LATERAL (SELECT ({0}::text::bigint - own.id) & 4294967295) AS behind (count)
))"""
"""An id without its epoch is one of the two thousand million behind the transaction's, or lies before that. Those of
savepoints are behind it. So are those of others that began later: what they have written is visible once they have
ended, and what is visible and in progress is our own. Of an id that the snapshot does not know yet the server tells
nothing: nobody else's is visible. The age is asked first, which costs little: that of ours is never above zero.
"""


def is_ours(xmin: sql.Composable) -> sql.Composed:
    """The condition, on the `xmin` of a row."""
    return sql.SQL(_IS_OURS).format(xmin)

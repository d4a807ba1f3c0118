"""Transactions that hold up the source's locks and slots, described for people: a prepared one has no session that
would show it, and one that waits for a copy holds that copy up.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

_BEHIND_US: Final = """
SELECT DISTINCT waiting.pid, waiting.relation::regclass::text
FROM pg_catalog.pg_locks AS waiting
WHERE NOT waiting.granted AND waiting.locktype = 'relation' AND waiting.mode = 'AccessExclusiveLock'
    AND waiting.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity AS ours
        WHERE ours.pid = ANY(pg_catalog.pg_blocking_pids(waiting.pid))
            AND pg_catalog.starts_with(ours.application_name, 'parallel_apply ')
    )
ORDER BY waiting.pid LIMIT 5
"""
_HOLDER = """
SELECT held.pid
FROM pg_catalog.pg_locks AS held, (SELECT hashtextextended(%s, 0) AS number) AS key
WHERE held.granted AND held.locktype = 'advisory' AND held.objsubid = 1
    AND held.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND held.classid = ((key.number >> 32) & 4294967295)::oid AND held.objid = (key.number & 4294967295)::oid
"""
"""The server shows an advisory lock's number as its upper and its lower half."""


def lock_holder(connection: psycopg.Connection[Any], key: str) -> int | None:
    """The process that holds the advisory lock of a text. Errors: psycopg's own."""
    found = connection.execute(_HOLDER, [key]).fetchone()
    return None if found is None else int(found[0])


def held_up_hint(connection: psycopg.Connection[Any], *, by_all_databases: bool = False) -> str:
    """The hint for a wait that timed out. `by_all_databases`: a new slot waits for the transactions of the whole
    server, a lock for those of this database alone. Errors: psycopg's own.
    """
    waiting = connection.execute(_BEHIND_US).fetchall()
    if waiting:
        named = ", ".join(f"session {pid} ({table})" for pid, table in waiting)
        ended = ", ".join(f"pg_cancel_backend({pid})" for pid, _ in waiting)
        return (
            "Until the copy ends, the tables that it copies cannot be altered or truncated. Somebody tries to, and the "
            f"copy waits behind them: {named}. End it at the source (SELECT {ended}), and repeat the statement after "
            "the copy; or run again once it is done."
        )
    found = connection.execute(
        "SELECT gid, database::text, database = current_database() FROM pg_catalog.pg_prepared_xacts "
        "WHERE %s OR database = current_database() ORDER BY prepared LIMIT 5",
        [by_all_databases],
    ).fetchall()
    if not found:
        return "An open transaction at the source holds it up; look at pg_stat_activity and pg_locks."
    prepared = ", ".join(gid if is_here else f"{gid} (in the database {database})" for gid, database, is_here in found)
    where = "" if all(is_here for _, _, is_here in found) else ", in its database"
    return (
        f"Prepared transactions hold it up (pg_prepared_xacts): {prepared}. Run COMMIT PREPARED or ROLLBACK PREPARED "
        f"for each{where}, or look at pg_stat_activity for others."
    )

"""Transactions that hold up the source's locks and slots, for people: a prepared one has no session that shows it."""

from __future__ import annotations

from typing import Any

import psycopg


def held_up_hint(connection: psycopg.Connection[Any], *, by_all_databases: bool = False) -> str:
    """The hint for what waited in vain. `by_all_databases`: a new slot waits for the transactions of the whole server;
    locks are held by those of this database alone. Errors: psycopg's own.
    """
    found = connection.execute(
        "SELECT gid, database::text, database = current_database() FROM pg_catalog.pg_prepared_xacts "
        "WHERE %s OR database = current_database() ORDER BY prepared LIMIT 5",
        [by_all_databases],
    ).fetchall()
    if not found:
        return "A transaction that is open at the source holds it up; look at pg_stat_activity and pg_locks."
    prepared = ", ".join(gid if is_here else f"{gid} (in the database {database})" for gid, database, is_here in found)
    where = "" if all(is_here for _, _, is_here in found) else ", in its database"
    return (
        f"Prepared transactions hold it up (pg_prepared_xacts): {prepared}. Run COMMIT PREPARED or ROLLBACK PREPARED "
        f"for each{where}, or look at pg_stat_activity for others."
    )

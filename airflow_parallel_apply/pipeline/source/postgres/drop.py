"""Removes a pipeline's slot and publication, and nothing that merely has their names.

The slot goes first, because it is what fills the source's disk. Each step may find that its object is gone already.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.finding import Side
from airflow_parallel_apply.pipeline.model.removal import Leftover, Removal
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import unwatch, watch_name
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.postgres.quoting import quoted

_PATIENCE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_OURS: Final = "parallel_apply: log "
"""How the comment of every publication of ours begins."""


def drop_commands(name: str) -> tuple[str, ...]:
    """The commands that a person runs at a source that we cannot reach. `name`: the name of slot and publication."""
    slot = sql.Literal(name).as_string()
    return (
        f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {slot}",
        f"DROP PUBLICATION IF EXISTS {quoted(name)}, {quoted(watch_name(name))}",
    )


def drop_source(session: Session, name: str, *, force: bool) -> Removal:
    """`force`: end the session that reads the slot. Errors: the drivers' own."""
    connection = session.catalog()
    return _drop_slot(connection, name, session.place, force=force) + _drop_publication(connection, name, session.place)


def _drop_slot(connection: psycopg.Connection[Any], name: str, place: str, *, force: bool) -> Removal:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    command = drop_commands(name)[0]
    while True:
        found = connection.execute(
            "SELECT database::text, active_pid, database = current_database() FROM pg_replication_slots "
            "WHERE slot_name = %s",
            [name],
        ).fetchone()
        if found is None:
            return Removal()
        database, reader, is_here = found
        if not is_here:
            # Slots are the server's, not the database's: a pipeline of the same name in another database has it.
            return _left(f"slot {name} is one of database {database}, not of {place}; it stays")
        if reader is not None and force:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [reader])
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        except psycopg.errors.UndefinedObject:
            return Removal()
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                return _left(f"slot {name} is read by process {reader}", command)
            time.sleep(_POLL_SECONDS)
        except psycopg.errors.InsufficientPrivilege as error:
            return _left(f"slot {name} at {place}: {error.diag.message_primary}", command)
        else:
            return Removal(done=(f"dropped slot {name} at {place}",))


def _drop_publication(connection: psycopg.Connection[Any], name: str, place: str) -> Removal:
    found = connection.execute(
        "SELECT coalesce(obj_description(oid, 'pg_publication'), '') FROM pg_publication WHERE pubname = %s", [name]
    ).fetchone()
    if found is None:
        return Removal()
    command = drop_commands(name)[1]
    if not found[0].startswith(_OURS):
        return _left(f"publication {name} was made or changed by somebody else; it stays", command)
    try:
        unwatch(connection, name)
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        return _left(f"publication {name} at {place}: {error.diag.message_primary}", command)
    return Removal(done=(f"dropped publication {name} at {place}",))


def _left(what: str, command: str = "") -> Removal:
    return Removal(left=(Leftover(side=Side.SOURCE, what=what, command=command),))

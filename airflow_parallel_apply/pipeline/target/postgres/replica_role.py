"""The replica role of a transaction: no foreign key checks and no ordinary triggers, where the role may set it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.quoting import quoted


def be_replica(connection: psycopg.Connection[Any]) -> bool:
    """Run the rest of the transaction as a replica does (no foreign key checks, no ordinary triggers), if allowed."""
    if not may_be_replica(connection):
        # What may be checked at the end is: children may come before their parents then.
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        return False
    connection.execute(statement("merge", "be_replica"))
    return True


def check_what_waits(connection: psycopg.Connection[Any]) -> None:
    """Check now what `be_replica` put off to the end: the server truncates and alters no table with checks pending.
    What cannot be checked yet was pending at the source, too, and stays so.
    """
    with suppress(psycopg.IntegrityError, psycopg.errors.RaiseException), connection.transaction():
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        connection.execute("SET CONSTRAINTS ALL DEFERRED")


def replica_grant(role: str) -> str:
    """The statement that gives a role the right."""
    return f"GRANT SET ON PARAMETER session_replication_role TO {quoted(role)}"


def may_be_replica(connection: psycopg.Connection[Any]) -> bool:
    """True if the role has the right to set `session_replication_role`, or has it set."""
    return connection.execute(statement("tables", "may_be_replica")).fetchone() == (True,)

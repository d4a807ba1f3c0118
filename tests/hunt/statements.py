"""Statements as a trial runs them: one that cannot be done is left, and none waits for a lock for ever."""

from __future__ import annotations

from typing import Any, Final

import psycopg

LOCK_TIMEOUT: Final = "3s"


def run_each(dsn: str, statements: tuple[str, ...], lock_timeout: str = LOCK_TIMEOUT) -> list[str]:
    """Each by itself; what could not be done. A step that was left out may have made what a later one needs."""
    failed = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            try:
                patient(connection, statement, lock_timeout)
            except psycopg.Error as error:
                failed.append(f"{statement}: {error.diag.message_primary}")
    return failed


def patient(connection: psycopg.Connection[Any], statement: str, lock_timeout: str = LOCK_TIMEOUT) -> int:
    """But not for ever: a session that the trial itself holds open may be in the way. How many rows it wrote."""
    connection.execute(f"SET lock_timeout = '{lock_timeout}'")
    return connection.execute(statement).rowcount

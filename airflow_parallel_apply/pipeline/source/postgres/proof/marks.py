"""Marks: transactions of our own that prove to the log that the source still has what it had before: `needs_mark`.

A source that went back to before a mark that the log has read is refused. So a run writes one only where it proves
something: a source that loses nothing but what others wrote may continue.
"""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.session import statement


def needs_mark(connection: psycopg.Connection[Any], log: LogState, now: Registration) -> bool:
    """True if the tables are others than the log has registered, or if behind a mark types would be older than the
    horizon which are not yet, and which a followed table may come to use. Errors: psycopg's own.
    """
    if log.registration is None or now.tables != Registration.from_text(log.registration).tables:
        return True
    return now.ahead is not None and has_new_types(connection, now.seen_from(log.resume).horizon or 0, now.ahead)


def has_new_types(connection: psycopg.Connection[Any], horizon: int, ahead: int) -> bool:
    """True if labels or attributes of types were written between these transaction ids. Errors: psycopg's own."""
    found = connection.execute(statement("new_types"), {"horizon": horizon, "ahead": ahead}).fetchone()
    return found is None or bool(found[0])

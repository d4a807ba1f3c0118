"""Counts how often channels were in each other's way, by reason and table: once for each merge point."""

from __future__ import annotations

from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.errors import ConflictReason
from airflow_parallel_apply.pipeline.ledger.postgres.statements import ledger_sql
from airflow_parallel_apply.pipeline.ledger.protocol import ConflictCount
from airflow_parallel_apply.pipeline.target.postgres.session import Session


def count_conflict(session: Session, *, reason: ConflictReason, table: str | None, seqno: int) -> None:
    """See `Ledger.count_conflict`."""
    names = {"pipeline": session.pipeline, "reason": reason, "table": table or "", "seqno": seqno}
    with session.transaction("count conflict") as connection:
        connection.execute(ledger_sql(session, "conflicts", "add"), names)


def read_conflicts(session: Session) -> tuple[ConflictCount, ...]:
    """None where a schema of an older release is not upgraded yet."""
    with session.errors("read conflicts"):
        connection = session.connection()
        found = connection.execute(ledger_sql(session, "conflicts", "exists"), {"schema": session.schema}).fetchone()
        if found is None or not found[0]:
            return ()
        cursor = connection.cursor(row_factory=class_row(ConflictCount))
        cursor.execute(ledger_sql(session, "conflicts", "read"), {"pipeline": session.pipeline})
        return tuple(cursor)

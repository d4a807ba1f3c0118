"""Counts work that was done in vain, by kind, reason and table."""

from __future__ import annotations

from dataclasses import replace

from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.ledger.postgres.statements import ledger_sql
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkCount, ReworkKind
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Session


def count_rework(session: Session, rework: Rework, *, seqno: int) -> None:
    """See `Ledger.count_rework`."""
    names = {
        "pipeline": session.pipeline,
        "kind": rework.kind,
        "reason": rework.reason,
        "table": rework.table or "",
        "seqno": seqno,
    }
    with session.transaction("count rework") as connection:
        connection.execute(ledger_sql("rework", "add"), names)


def read_rework(session: Session) -> tuple[ReworkCount, ...]:
    """None where a schema of an older release is not upgraded yet."""
    with session.errors("read rework"):
        connection = session.connection()
        there = connection.execute(ledger_sql("rework", "exists"), {"schema": SCHEMA}).fetchone()
        if there is None or not there[0]:
            return ()
        cursor = connection.cursor(row_factory=class_row(ReworkCount))
        cursor.execute(ledger_sql("rework", "read"), {"pipeline": session.pipeline})
        return tuple(replace(found, kind=ReworkKind(found.kind)) for found in cursor)

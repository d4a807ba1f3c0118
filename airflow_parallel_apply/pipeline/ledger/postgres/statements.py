"""SQL of this room."""

from __future__ import annotations

from psycopg import sql

from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def ledger_sql(session: Session, file: str, name: str) -> sql.Composed:
    """The statement `name` of `<file>.sql`, for the session's schema."""
    return statement(file, name, schema=session.schema, package=__package__)

"""SQL of this room."""

from __future__ import annotations

from psycopg import sql

from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def ledger_sql(file: str, name: str) -> sql.Composed:
    """The statement `name` of `<file>.sql`."""
    return statement(file, name, package=__package__)

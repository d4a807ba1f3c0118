"""Constraints that a partition has from its table: a hint names the table, where they can be altered."""

from __future__ import annotations

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def name_owner(connection: Connection, error: ParallelApplyError, cause: BaseException | None, *, schema: str) -> None:
    """Name the followed table in an error that the server raised about one of its partitions, after the rollback.
    Errors: psycopg's own.
    """
    if not isinstance(cause, psycopg.Error) or error.hint is None:
        return
    found = cause.diag
    partition = f"{found.schema_name}.{found.table_name}"
    if found.table_name is None or f"ALTER TABLE {partition} " not in error.hint:
        return
    owner = connection.execute(
        statement("inherited", "owner", schema=schema),
        {
            "schema": found.schema_name,
            "table": found.table_name,
            "constraint": found.constraint_name,
            "column": found.column_name,
        },
    ).fetchone()
    if owner is not None:
        error.hint = error.hint.replace(f"ALTER TABLE {partition} ", f"ALTER TABLE {owner[0]} ")

"""Constraints that a table has from another one: a hint names that one, where they can be altered."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.quoting import quoted


def name_owner(
    connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None, *, schema: str
) -> None:
    """Name the table above in an error that the server raised about a partition or a child, after the rollback. Errors:
    psycopg's own.
    """
    if not isinstance(cause, psycopg.Error) or error.hint is None:
        return
    found = cause.diag
    if found.schema_name is None or found.table_name is None:
        return
    heir = f"ALTER TABLE {quoted(found.schema_name, found.table_name)} "
    if heir not in error.hint:
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
    if owner is None:
        return
    above, table, name = owner
    error.hint = error.hint.replace(heir, f"ALTER TABLE {quoted(above, table)} ")
    if found.constraint_name is not None:
        error.hint = error.hint.replace(f"CONSTRAINT {quoted(found.constraint_name)}", f"CONSTRAINT {quoted(name)}")

"""Columns for which the target demands values and the source does not, as they are called after the rollback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.quoting import quoted

FormerColumns = Mapping[tuple[str, str, str], str]
"""The former name of a column, by schema and table and the name that a transaction gave it which may be rolled back."""
ADDS_CONSTRAINTS: Final = "ATRewriteTable"
"""The server's function that looks whether rows that are there meet a constraint which is being added."""
_QUERY: Final = """
SELECT n.nspname::text, r.relname::text, a.attname::text, k.conname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
JOIN pg_catalog.pg_class r ON r.oid = coalesce(pg_catalog.pg_partition_root(c.oid), c.oid)
JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_constraint k ON k.conrelid = r.oid AND k.contype = 'p' AND a.attnum = ANY (k.conkey)
WHERE s.nspname = %s AND c.relname = %s AND a.attname = %s
"""


def name_required(
    connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None, former: FormerColumns
) -> None:
    """Give an error of a missing value the statements that let the column do without, after the rollback: under the
    name that it has then, and without the primary key that it belongs to. Errors: psycopg's own.
    """
    if not isinstance(cause, psycopg.Error) or cause.sqlstate != sqlstate.NOT_NULL_VIOLATION:
        return
    if cause.diag.source_function == ADDS_CONSTRAINTS:
        # The source made that demand.
        return
    schema, table, column = cause.diag.schema_name, cause.diag.table_name, cause.diag.column_name
    if schema is None or table is None or column is None:
        return
    found = connection.execute(_QUERY, [schema, table, column]).fetchone()
    if found is None and (before := former.get((schema, table, column))) is not None:
        found = connection.execute(_QUERY, [schema, table, before]).fetchone()
    if found is None or (found[2] == column and found[3] is None):
        return
    path, name, key = quoted(*found[:2]), found[2], found[3]
    alter = [f"ALTER TABLE {path} ALTER COLUMN {quoted(name)} DROP NOT NULL"]
    also = ""
    if key is not None:
        alter.insert(0, f"ALTER TABLE {path} DROP CONSTRAINT {quoted(key)}")
        also = " The source's key lies in other columns by now: with ddl=apply the run makes an index for it."
    error.hint = (
        f"The target demands a value that the source has none for. Run {'; '.join(alter)} at the target, then run "
        f"again.{also}"
    )

"""Columns and constraints that a table has from another one: a hint names that one, where they can be altered."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.finding import table_options
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.quoting import quoted

_ALTERING: Final = re.compile(
    r'ALTER TABLE (?P<heir>"(?P<schema>(?:[^"]|"")+)"\."(?P<table>(?:[^"]|"")+)") '
    r'(?:ALTER COLUMN (?P<column>"(?:[^"]|"")+") (?:TYPE |DROP DEFAULT, )'
    r'|DROP COLUMN (?P<replaced>"(?:[^"]|"")+"), ADD COLUMN )'
)


def name_owner(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None) -> None:
    """Name the table above in an error about a partition or a child, after the rollback. Errors: psycopg's own."""
    if error.hint is None:
        return
    error.hint = altering_of_owner(connection, error.hint)
    if not isinstance(cause, psycopg.Error):
        return
    found = cause.diag
    if found.schema_name is None or found.table_name is None:
        return
    heir = f"ALTER TABLE {quoted(found.schema_name, found.table_name)} "
    if heir not in error.hint:
        return
    owner = connection.execute(
        statement("inherited", "owner"),
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


def altering_of_owner(connection: psycopg.Connection[Any], command: str) -> str:
    """An ALTER COLUMN … TYPE, or one that replaces a column, of the table that the column is inherited from, if it is;
    what is to be copied behind a replacement are all tables that have lost the column's values. Errors: psycopg's own.
    """
    found = _ALTERING.search(command)
    if found is None:
        return command
    heir, column = found["heir"], found["column"] or found["replaced"]
    owner = owner_of_column(connection, heir, column)
    if owner is None:
        return command
    named = command.replace(f"ALTER TABLE {heir} ", f"ALTER TABLE {quoted(*owner)} ")
    if found["replaced"] is None:
        return named
    copied = table_options([".".join(found[part].replace('""', '"') for part in ("schema", "table"))])
    emptied = table_options([".".join(one) for one in (owner, *heirs(connection, *owner))])
    return named.replace(copied, emptied)


def owner_of_column(connection: psycopg.Connection[Any], heir: str, column: str) -> tuple[str, str] | None:
    """Schema and name of the uppermost table that one has a column from, if it has; both are given quoted. Errors:
    psycopg's own.
    """
    values = {"heir": heir, "column": column}
    owner = connection.execute(statement("inherited", "owner_of_column"), values).fetchone()
    return None if owner is None else (str(owner[0]), str(owner[1]))


def heirs(connection: psycopg.Connection[Any], schema: str, table: str) -> list[tuple[str, str]]:
    """Schema and name of a table's children at any depth, without partitions. Errors: psycopg's own."""
    values = {"schema": schema, "table": table}
    found = connection.execute(statement("inherited", "heirs"), values).fetchall()
    return [(str(one), str(other)) for one, other in found]

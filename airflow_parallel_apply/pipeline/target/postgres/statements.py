"""The statements of a room.

In their text `{schema}` stands for the schema of the pipelines' tables, other names in braces for what the caller puts
there.
"""

from __future__ import annotations

from functools import cache

from psycopg import sql

from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.postgres.statements import statements


def statement(file: str, name: str, *, package: str = __package__, **parts: sql.Composable) -> sql.Composed:
    """The statement `name` of `sql/<file>.sql` in a room (this one, unless told)."""
    if not parts:
        return _plain(package, file, name)
    return sql.SQL(statements(package, file)[name]).format(schema=sql.Identifier(SCHEMA), **parts)


@cache
def _plain(package: str, file: str, name: str) -> sql.Composed:
    """In one piece, which psycopg need not put together anew for each execution."""
    found = sql.SQL(statements(package, file)[name]).format(schema=sql.Identifier(SCHEMA))
    return sql.Composed([sql.SQL(found.as_string(None))])

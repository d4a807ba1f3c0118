"""The statements of a room, for a pipeline's schema.

In their text `{schema}` stands for the schema, other names in braces for what the caller puts there.
"""

from __future__ import annotations

from psycopg import sql

from airflow_parallel_apply.postgres.statements import statements


def statement(
    file: str, name: str, *, schema: str, package: str = __package__, **parts: sql.Composable
) -> sql.Composed:
    """The statement `name` of `<file>.sql` in a room (this one, unless told), for this schema."""
    return sql.SQL(statements(package, file)[name]).format(schema=sql.Identifier(schema), **parts)

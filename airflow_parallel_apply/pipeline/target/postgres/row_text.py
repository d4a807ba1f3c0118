"""The text of values together, by which they are compared wherever a type has no equality, or one of its own."""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql


def row_text(values: Iterable[sql.Composable]) -> sql.Composed:
    """One text for all values, as their types print them: a NULL is told from an empty text, and letters are compared
    as bytes, whatever the collation of a value.
    """
    return sql.SQL('(ROW({})::text COLLATE "C")').format(sql.SQL(", ").join(values))

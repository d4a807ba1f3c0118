"""Names in SQL that a person pastes."""

from __future__ import annotations

from psycopg import sql


def quoted(*names: str) -> str:
    """An identifier, whatever is in its name."""
    return sql.Identifier(*names).as_string()

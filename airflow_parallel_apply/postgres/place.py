"""The place that a connection string names, for people: without secrets."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict


def place_of_dsn(dsn: str) -> str:
    """`host:port/database`. Errors: psycopg's own, for a string that is none."""
    given = conninfo_to_dict(dsn)
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return f"{host}:{given.get('port') or 5432}/{given.get('dbname') or given.get('user') or 'postgres'}"

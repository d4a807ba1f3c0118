"""The place that a connection string names, for people: without secrets."""

from __future__ import annotations

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict


def place_of_dsn(dsn: str) -> str:
    """`host:port/database`, or what a string names of these beside `service=name`, whose file is the server's driver's
    to read. Errors: `ValueError` for a string that is none, without the string, which may hold a password.
    """
    try:
        given = conninfo_to_dict(dsn)
    except ProgrammingError:
        raise ValueError("libpq does not take it for a connection string") from None
    if service := given.get("service"):
        named = ("host", "hostaddr", "port", "dbname")
        return " ".join([f"service={service}", *(f"{name}={given[name]}" for name in named if given.get(name))])
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return f"{host}:{given.get('port') or 5432}/{given.get('dbname') or given.get('user') or 'postgres'}"

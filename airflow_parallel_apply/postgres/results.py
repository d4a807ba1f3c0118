"""Results of those who call libpq beside psycopg's cursors."""

from __future__ import annotations

import psycopg
from psycopg.pq.abc import PGresult


def failure_of(result: PGresult) -> psycopg.Error:
    """The server's reason. Where it gave none the connection broke, and the error is that of psycopg's own calls."""
    failure = psycopg.errors.error_from_result(result)
    return failure if failure.diag.sqlstate else psycopg.OperationalError(str(failure))

"""Rights that the source's role lacks in the middle of a run: the GRANT, by name."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from airflow_parallel_apply.postgres.quoting import quoted

_DENIED: Final = re.compile(r"permission denied for function (\w+)")
_CLOSED: Final = """
SELECT string_agg(p.oid::regprocedure::text, ', ' ORDER BY p.oid), current_user::text
FROM pg_catalog.pg_proc p
WHERE p.proname = %s AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
"""


def closed_function_hint(connection: psycopg.Connection[Any], text: str) -> str | None:
    """The hint for a function that the role may not call; None where the server's words name none. Errors: psycopg's
    own.
    """
    denied = _DENIED.search(text)
    if denied is None:
        return None
    functions, role = connection.execute(_CLOSED, [denied[1]]).fetchone() or (None, "")
    if functions is None:
        return None
    return f"Run GRANT EXECUTE ON FUNCTION {functions} TO {quoted(role)} at the source, as a superuser; then run again."

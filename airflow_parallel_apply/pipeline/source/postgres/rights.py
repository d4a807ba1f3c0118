"""Rights that the source's role lacks in the middle of a run: the statement that gives them, by name."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

_LACKING: Final = re.compile(r"permission denied for (function) (\w+)|must be owner of (publication) (\w+)")
_GRANTS: Final = {
    "function": """
SELECT pg_catalog.format('GRANT EXECUTE ON FUNCTION %%s TO %%I',
    pg_catalog.string_agg(p.oid::regprocedure::text, ', ' ORDER BY p.oid), current_user)
FROM pg_catalog.pg_proc p
WHERE p.proname = %s AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
HAVING count(*) > 0
""",
    "publication": "SELECT pg_catalog.format('ALTER PUBLICATION %%I OWNER TO %%I', %s::text, current_user)",
}
"""The statement for what the server's words name; null where nothing is lacking any more."""


def lacking_right_hint(connection: psycopg.Connection[Any], text: str) -> str | None:
    """The hint for a right that the role lacks; None where the server's words name none. Errors: psycopg's own."""
    found = _LACKING.search(text)
    if found is None:
        return None
    what, name = (one for one in found.groups() if one)
    (statement,) = connection.execute(_GRANTS[what], [name]).fetchone() or (None,)
    return statement and f"Run {statement} at the source, as a superuser; then run again."

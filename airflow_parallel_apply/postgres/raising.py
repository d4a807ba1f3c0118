"""Functions that an error of a server comes from, and the triggers and event triggers that call them: by the error's
context, which begins with the innermost function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import psycopg

_IN_FUNCTION: Final = re.compile(
    r'PL/pgSQL function (?P<signature>(?P<path>(?:[^\s"(]|"(?:[^"]|"")+")+)\([^)]*\))|SQL function "(?P<name>[^"]+)"'
)
_LAST_NAME: Final = re.compile(r'(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+))\Z')
_EVENT_TRIGGERS: Final = """
SELECT e.evtname::text
FROM pg_catalog.pg_event_trigger e
JOIN pg_catalog.pg_proc p ON p.oid = e.evtfoid
WHERE e.evtenabled <> 'D' AND p.proname = ANY (%s)
ORDER BY 1
"""
_TRIGGERS: Final = """
SELECT format('%%I.%%I', n.nspname, c.relname), g.tgname::text
FROM pg_catalog.pg_trigger g
JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid
JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT g.tgisinternal AND p.proname = ANY (%(functions)s) AND g.tgenabled::text = ANY (%(enabled)s)
  AND (%(table)s::text IS NULL OR EXISTS (
      SELECT FROM pg_catalog.pg_class held
      JOIN pg_catalog.pg_namespace h ON h.oid = held.relnamespace
      WHERE format('%%s.%%s', h.nspname, held.relname) = %(table)s
        AND (held.oid = c.oid OR held.oid IN (SELECT pg_catalog.pg_partition_ancestors(c.oid)))
  ))
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_trigger above WHERE above.oid = g.tgparentid AND above.tgenabled = g.tgenabled
  )
ORDER BY 1, 2
"""


def function_of(error: psycopg.Error) -> str | None:
    """The function that an error comes from, for people."""
    found = _IN_FUNCTION.search(error.diag.context or "")
    return found and (found["signature"] or found["name"])


def event_trigger_of(connection: psycopg.Connection[Any], error: psycopg.Error) -> str | None:
    """The name of an event trigger that calls such a function. Errors: psycopg's own."""
    functions = _names(error)
    found = connection.execute(_EVENT_TRIGGERS, [functions]).fetchone() if functions else None
    return None if found is None else str(found[0])


def triggers_of(
    connection: psycopg.Connection[Any], error: psycopg.Error, *, enabled: Sequence[str], table: str | None
) -> list[tuple[str, str]]:
    """Table, as SQL, and name of each trigger that calls one, and whose `tgenabled` is among these: those of a table
    and its partitions, if it has any, since a function may serve others, too. Errors: psycopg's own.
    """
    functions = _names(error)
    for place in (table, None) if functions else ():
        names = {"functions": functions, "enabled": list(enabled), "table": place}
        found = connection.execute(_TRIGGERS, names).fetchall()
        if found:
            return [(str(where), str(name)) for where, name in found]
    return []


def _names(error: psycopg.Error) -> list[str]:
    """Without schemas: under the search path of a function others are left out than under that of a session."""
    names = []
    for found in _IN_FUNCTION.finditer(error.diag.context or ""):
        last = _LAST_NAME.search(found["path"] or "")
        if last is None:
            names.append(found["name"])
        else:
            names.append(last["plain"] or last["quoted"].replace('""', '"'))
    return [*dict.fromkeys(names)]

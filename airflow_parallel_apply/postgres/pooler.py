"""Detects a pooler that hands one server session to several clients: `shares_sessions`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import psycopg

_TRIES: Final = 3
POOLER_FOUND: Final = "a pooler in transaction mode stands in between, which hands one session to several clients"


def shares_sessions(connection: psycopg.Connection[Any], connect: Callable[[], psycopg.Connection[Any]]) -> bool:
    """True if the sessions that `connect` opens, of which `connection` is one, are not the caller's alone, as with a
    pooler in transaction mode.

    A session's own process answers every statement of it, and none of another's. Where the server's process is the one
    that the connection was told of, nobody stands between. Errors: psycopg's own.
    """
    if _process(connection) == connection.info.backend_pid:
        return False
    with closing(connect()) as first, closing(connect()) as second:
        before = _process(first)
        for _ in range(_TRIES):
            with second.transaction():
                taken = _process(second)
                # Whoever keeps a session for its client answers at once, and from where it answered before.
                if taken == before:
                    return True
            if _process(first) != before:
                return True
    return False


def _process(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
    return 0 if found is None else int(found[0])

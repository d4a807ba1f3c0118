"""Tells a login that a server refuses from a server that is away: a connection that fails has no code."""

from __future__ import annotations

from typing import Final

_REFUSALS: Final = (
    "authentication failed",
    "is not permitted to log in",
    "permission denied for database",
)
LOGIN_HINT: Final = (
    "Check user and password of the connection, and at the server whether the role is there, may log in (ALTER ROLE … "
    "LOGIN), and may connect to the database (GRANT CONNECT)."
)
_FULL: Final = (
    "All connections are taken that the server, its database or the role may have: let others end theirs, or raise the "
    "limit (max_connections, CONNECTION LIMIT)."
)
_CLOSED: Final = "Somebody closed the database: ALTER DATABASE … ALLOW_CONNECTIONS true opens it."
_LOGIN_TRIGGER: Final = (
    "An event trigger of that database, ON login, raised this: let it pass over this role. Or connect once with "
    "options='-c event_triggers=off', as a superuser, and run ALTER EVENT TRIGGER … DISABLE (SELECT evtname FROM "
    "pg_event_trigger WHERE evtevent = 'login')."
)
_STATEMENT_POOLER: Final = (
    "A connection pooler in statement mode stands in between: connect to the server itself, or let the pooler work in "
    "session mode."
)
_HINTS: Final = {
    "PL/pgSQL function": _LOGIN_TRIGGER,
    "too many connections": _FULL,
    "too many clients": _FULL,
    "remaining connection slots": _FULL,
    "is not currently accepting connections": _CLOSED,
    "statement pooling mode": _STATEMENT_POOLER,
}


def refuses_login(text: str) -> bool:
    """True for the words of a server that answered, and lets this role not in."""
    return any(words in text for words in _REFUSALS) or ('role "' in text and "does not exist" in text)


def hint_while_away(text: str) -> str:
    """The hint for a server that cannot be reached, or that answered and lets nobody in for now."""
    return hint_told(text) or "Is the server up, and reachable here?"


def hint_told(text: str) -> str | None:
    """The hint for a cause that the words tell; None where they tell none of these."""
    return next((hint for words, hint in _HINTS.items() if words in text), None)

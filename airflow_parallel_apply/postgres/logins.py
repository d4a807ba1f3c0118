"""Tells a login that a server refuses from a server that is away: a connection that fails has no code."""

from __future__ import annotations

from typing import Final

_REFUSALS: Final = (
    "authentication failed",
    "is not permitted to log in",
    "permission denied for database",
    "is not currently accepting connections",
)
LOGIN_HINT: Final = (
    "Check user and password of the connection, and at the server whether the role is there, may log in (ALTER ROLE … "
    "LOGIN), and may connect to the database (GRANT CONNECT), and whether that takes connections (ALTER DATABASE … "
    "ALLOW_CONNECTIONS true)."
)
_FULL: Final = ("too many connections", "too many clients", "remaining connection slots")
FULL_HINT: Final = (
    "All connections are taken that the server, its database or the role may have: let others end theirs, or raise the "
    "limit (max_connections, CONNECTION LIMIT)."
)


def refuses_login(text: str) -> bool:
    """True for the words of a server that answered, and lets this role not in."""
    return any(words in text for words in _REFUSALS) or ('role "' in text and "does not exist" in text)


def is_full(text: str) -> bool:
    """True for the words of a server that answered, and has no connection to spare."""
    return any(words in text for words in _FULL)

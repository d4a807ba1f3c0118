"""Tells a login that a server refuses from a server that is away: a connection that fails has no code."""

from __future__ import annotations

from typing import Final

_REFUSALS: Final = ("authentication failed", "is not permitted to log in", "permission denied for database")
LOGIN_HINT: Final = (
    "Check user and password of the connection, and at the server whether the role is there, may log in (ALTER ROLE … "
    "LOGIN), and may connect to the database (GRANT CONNECT)."
)


def refuses_login(text: str) -> bool:
    """True for the words of a server that answered, and lets this role not in."""
    return any(words in text for words in _REFUSALS) or ('role "' in text and "does not exist" in text)

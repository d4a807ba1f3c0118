"""Names in SQL that a person pastes."""

from __future__ import annotations

from typing import Final

from psycopg import sql

_BYTES: Final = 40
"""The bytes of a name that are kept. The server cuts a name behind 63 bytes, and with it what tells two names apart."""


def quoted(*names: str) -> str:
    """An identifier, whatever is in its name."""
    return sql.Identifier(*names).as_string()


def suffixed(name: str, suffix: str) -> str:
    """The name of something beside what has this one: its beginning, and the suffix, of 23 bytes at most."""
    return name.encode()[:_BYTES].decode(errors="ignore") + suffix

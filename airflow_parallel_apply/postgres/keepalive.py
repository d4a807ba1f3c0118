"""Settings that decide how soon a session notices a server that went away without a word."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

WORKING: Final[Mapping[str, str]] = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""In seconds, and the last in milliseconds: a vanished peer is noticed within about a minute."""

WAITING: Final[Mapping[str, str]] = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""For a session that waits for a notification, and sends nothing meanwhile: within half a minute."""


@lru_cache(maxsize=64)
def with_keepalives(dsn: str) -> str:
    """The connection string, with the settings of a working session where it has none of its own."""
    given = conninfo_to_dict(dsn)
    return make_conninfo(dsn, **{name: value for name, value in WORKING.items() if name not in given})

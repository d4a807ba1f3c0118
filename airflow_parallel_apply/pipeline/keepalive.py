"""Sessions that notice a server which went away without a word, as the queue's own do."""

from __future__ import annotations

from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_DEFAULTS: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""In seconds, and the last in milliseconds: a vanished peer is noticed within about a minute."""


def with_keepalives(dsn: str) -> str:
    """The connection string, with these settings where it has none of its own."""
    given = conninfo_to_dict(dsn)
    return make_conninfo(dsn, **{name: value for name, value in _DEFAULTS.items() if name not in given})

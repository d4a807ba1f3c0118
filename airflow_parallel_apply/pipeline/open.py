"""Reads the address of a source, target or ledger: its scheme, and its place for people.

A URL names its scheme; in front of a `+` where the rest is the URL of something that the occupant lies on, as in
`files+s3://bucket/folder`. PostgreSQL's connection strings may have libpq's `key=value` form instead, and its URLs a
short name.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from airflow_parallel_apply.pipeline.errors import ConfigurationError

POSTGRESQL: Final = "postgresql"
DRIVERS: Final = ("psycopg",)
"""Modules that the loaders of our own targets import in Spark's workers. They start no thread."""

_ALIASES: Final = {"postgres": POSTGRESQL}
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")


def scheme_of(address: str) -> str:
    """The scheme, which chooses the implementation of a source or target."""
    found = _SCHEME.match(address)
    if found is None:
        return POSTGRESQL
    scheme = found[1].partition("+")[0]
    return _ALIASES.get(scheme, scheme)


def place_of(address: str) -> str:
    """`host:port/database`, without secrets. Errors: `ConfigurationError` for an address that cannot be read."""
    try:
        if scheme_of(address) == POSTGRESQL:
            from airflow_parallel_apply.postgres.place import place_of_dsn

            return place_of_dsn(address)
        parts = urlsplit(address)
    except ValueError as error:
        raise ConfigurationError(
            f"an address of {scheme_of(address)} cannot be read: {error}",
            hint=f"It looks like {scheme_of(address)}://user:password@host:port/database. In a password %40 stands for "
            "@, %25 for %, %5B for [.",
        ) from None
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_dsn(text: str) -> bool:
    """True if `text` is a connection string of PostgreSQL, in either form."""
    return "=" in text or ("://" in text and scheme_of(text) == POSTGRESQL)


def is_address(text: str) -> bool:
    """True if `text` locates a source or a target by itself: a URL of any scheme, or such a connection string."""
    return "://" in text or is_dsn(text)

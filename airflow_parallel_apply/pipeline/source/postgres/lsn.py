"""LSNs as PostgreSQL writes them: the form of its offsets."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.source.postgres.session import statement

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Inverse of `lsn_text`. Errors: `ConfigurationError`."""
    found = _LSN.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{text!r} is not an LSN", hint="An LSN is two hexadecimal numbers: 0/16B3748.")
    return (int(found.group(1), 16) << 32) | int(found.group(2), 16)


def inserted_lsn(connection: psycopg.Connection[Any]) -> int:
    """The end of the WAL: what commits from now on has its commit there or behind it. Errors: psycopg's own."""
    found = connection.execute(statement("inserted_lsn")).fetchone()
    if found is None:
        raise Unavailable("the source did not tell its LSN", op="capture")
    return int(found[0])

"""Sessions that print names of types as the source's are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg


@contextmanager
def without_search_path(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """The source's texts are those of a session that has none. Inside a transaction."""
    (path,) = connection.execute("SELECT current_setting('search_path')").fetchone() or ("",)
    connection.execute("SELECT set_config('search_path', '', true)")
    yield
    connection.execute("SELECT set_config('search_path', %s, true)", [path])

"""Finds which tables of a PostgreSQL database have rows, with a few statements for any number of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

_TABLES_PER_STATEMENT: Final = 500


def filled(connection: psycopg.Connection[Any], tables: Sequence[sql.Composable]) -> Iterator[bool]:
    """Tell for each table, named as in FROM, whether it has a row that the connection's transaction sees. Errors:
    psycopg's.
    """
    for first in range(0, len(tables), _TABLES_PER_STATEMENT):
        looks = (
            sql.SQL("EXISTS (SELECT FROM {})").format(one) for one in tables[first : first + _TABLES_PER_STATEMENT]
        )
        found = connection.execute(sql.SQL("SELECT ARRAY[{}]").format(sql.SQL(", ").join(looks))).fetchone()
        yield from found[0] if found else ()

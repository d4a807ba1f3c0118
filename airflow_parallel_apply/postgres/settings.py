"""Settings that a session must have, set after connecting and read back.

The startup packet is no place for them: a pooler may drop what it carries (`ignore_startup_parameters = options`), and
roles and databases have defaults of their own (`ALTER ROLE … SET`). Two statements for each session: one sets, one
reads, in transactions of their own, so that a session which is not the same from one to the next is noticed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from psycopg import sql

EXACT: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
}
"""A value's text depends on them, and what a statement means: the same at both ends."""

LASTING: Final[Mapping[str, str]] = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""By none of them a session ends that waits for another one, as a first copy's does for hours."""

PLAIN: Final[Mapping[str, str]] = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "row_security": "off",
    "jit": "off",
}
"""Transactions that see what was committed before each statement, and may write; no policy hides rows. No statement is
worth compiling: those over the catalog look dear to the planner, in each session anew.
"""

Run = Callable[[str], Sequence[Sequence[Any]]]
"""Executes a statement without parameters in a transaction of its own; its rows."""


class SettingsLost(Exception):
    """A session does not keep what it was told."""

    def __init__(self, name: str, wanted: str, found: str) -> None:
        super().__init__(f"its session does not keep its settings: {name} was set to {wanted!r} and is {found!r}")


POOLER_HINT: Final = (
    "A connection pooler in transaction mode shares sessions: connect to the server itself, or let the pooler work in "
    "session mode."
)
RESET_HINT: Final = (
    "A connection pooler hands sessions on as their last client left them: let it reset them (PgBouncer: "
    "server_reset_query = DISCARD ALL, its default), or connect to the server itself."
)


def settle(run: Run, *settings: Mapping[str, str]) -> None:
    """Set them in this session; one that the server's version does not know is left out. Errors: `SettingsLost`; the
    driver's own.
    """
    wanted = {name: value for each in settings for name, value in each.items()}
    set_them, read_them = _statements(tuple(wanted.items()))
    given, kept = _by_name(run(set_them)), _by_name(run(read_them))
    for name, value in given.items():
        if value is not None and kept.get(name) != value:
            raise SettingsLost(name, value, str(kept.get(name)))


def _by_name(rows: Sequence[Sequence[Any]]) -> dict[str, str | None]:
    return {str(name): value for name, value in rows}


@cache
def _statements(wanted: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """The statement that sets them and the one that reads them; every session of a room has the same settings."""
    rows = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(sql.Literal(name), sql.Literal(value)) for name, value in wanted
    )
    set_them = sql.SQL(
        "SELECT name, CASE WHEN pg_catalog.current_setting(name, true) IS NOT NULL "
        "THEN pg_catalog.set_config(name, value, false) END FROM (VALUES {}) AS wanted (name, value)"
    )
    read_them = sql.SQL("SELECT name, pg_catalog.current_setting(name, true) FROM (VALUES {}) AS wanted (name, value)")
    return set_them.format(rows).as_string(None), read_them.format(rows).as_string(None)

"""Settings that a session must have, set after connecting and read back.

The startup packet is no place for them: a pooler may drop what it carries (`ignore_startup_parameters = options`), and
roles and databases have defaults of their own (`ALTER ROLE … SET`). Two statements for each session: one sets, one
reads, in transactions of their own, so that a session which is not the same from one to the next is noticed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.postgres import sqlstate

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
    "exit_on_error": "off",
}
"""By none of them a session ends that waits for another one, as a first copy's does for hours, or that meets an error.
"""

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

_NOTICED: Final[Mapping[str, str]] = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""By these a server notices within a minute that a session's host went away without a word, and lets go of the locks
that the session kept; by the system's own after two hours. Where a session needs no network they stay 0.
"""

Run = Callable[[str], Sequence[Sequence[Any]]]
"""Executes a statement without parameters in a transaction of its own; its rows."""


POOLER_HINT: Final = (
    "A connection pooler in transaction mode shares sessions: connect to the server itself, or let the pooler work in "
    "session mode."
)
RESET_HINT: Final = (
    "A connection pooler hands sessions on as their last client left them: let it reset them (PgBouncer: "
    "server_reset_query = DISCARD ALL, its default), or connect to the server itself."
)


_LIMIT_HINT: Final = (
    "The role or the database limits the time of sessions so that the first statement, which lifts the limit, does not "
    "come through: raise it there, or take it away (ALTER ROLE … RESET, ALTER DATABASE … RESET statement_timeout, "
    "transaction_timeout, idle_session_timeout)."
)
_TRIES: Final = 5
_OVER_LIMIT: Final = (sqlstate.QUERY_CANCELED, sqlstate.TRANSACTION_TIMEOUT, sqlstate.IDLE_SESSION_TIMEOUT)


class SettingsLost(Exception):
    """A session does not take, or keep, what it is told. `hint`: what a person does about it."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def settle(run: Run, *settings: Mapping[str, str]) -> None:
    """Set them in this session, whose end the server notices soon from then on; one that the server's version does not
    know is left out. Errors: `SettingsLost`; the driver's own.
    """
    wanted = {name: value for each in (*settings, _NOTICED) for name, value in each.items()}
    set_them, read_them = _statements(tuple(wanted.items()))
    given, kept = _by_name(_within_limits(run, set_them)), _by_name(run(read_them))
    for name, value in given.items():
        if value is not None and kept.get(name) != value:
            raise SettingsLost(
                f"its session does not keep its settings: {name} was set to {value!r} and is {str(kept.get(name))!r}",
                hint=POOLER_HINT,
            )


def _within_limits(run: Run, query: str, tries: int = _TRIES) -> Sequence[Sequence[Any]]:
    """Run the first statement of a session, under the limits that it has to lift. It is quicker when it comes again,
    since the session then has read the catalog.
    """
    try:
        return run(query)
    except psycopg.Error as error:
        state = error.diag.sqlstate
        if state == sqlstate.QUERY_CANCELED and tries > 1:
            # Within a transaction nothing comes again: what ended it is the reason.
            with suppress(psycopg.errors.InFailedSqlTransaction):
                return _within_limits(run, query, tries - 1)
            raise
        if state not in _OVER_LIMIT:
            raise
        raise SettingsLost(f"its session is over before it begins: {error}", hint=_LIMIT_HINT) from error


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

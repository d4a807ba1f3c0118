"""What PostgreSQL reports, as errors of the pipeline: branched by what the caller may do.

Source: the SQLSTATE classes of the PostgreSQL manual, appendix A.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    Conflict,
    ConflictReason,
    Deadlock,
    ParallelApplyError,
    RetryableError,
    TargetError,
    Unavailable,
)

_UNAVAILABLE_CLASSES: Final = ("08", "53", "57", "58")
"""Connection, resources, operator intervention, system errors."""

_RETRYABLE: Final = ("40001", "40003", "55P03", "25P03")
"""Serialization, unknown outcome, lock timeout, and a transaction that its own process left standing."""
_LOGIN: Final = ("28", "3D")

_DEADLOCK: Final = "40P01"
_CONFLICTS: Final = {
    "23505": ConflictReason.UNIQUE,
    "23P01": ConflictReason.EXCLUSION,
    "23503": ConflictReason.FOREIGN_KEY,
}

_HINTS: Final = {
    "23505": "The row is in the target already. Did somebody else write it, or did the copies differ at the start?",
    "23P01": "A row in the target excludes this one. Did somebody else write it, or did the copies differ before?",
    "23503": "A row that this one refers to is not in the target. Let the role set session_replication_role.",
    "23502": "The target demands a value that the source has none for.",
    "23514": "The target has a check constraint that the source's row does not meet.",
    "42501": "Grant the privilege to the role of the target connection.",
    "42P01": "Create the table in the target, or exclude it from the pipeline.",
    "42703": "Add the column to the target's table.",
    "25006": "Connect to the primary, not to a standby.",
    "22": "The target's column has another type than the source's.",
}

_COPY_PLACE: Final = re.compile(r"COPY .+?, line (?P<line>\d+)(?:, column (?P<column>[^:]+?))?(?::|$)", re.MULTILINE)


def translate(
    error: psycopg.Error,
    *,
    op: str,
    table: str | None = None,
    server: str = "target",
) -> ParallelApplyError:
    """The error to raise instead; no connection string appears in it. `server`: what people call the database."""
    state = error.sqlstate or error.diag.sqlstate
    text = _message(error)
    if state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        if "authentication failed" in text or "does not exist" in text:
            return ConfigurationError(f"cannot connect to the {server}: {text}", op=op, hint="Check the connection.")
        return Unavailable(f"cannot reach the {server}: {text}", op=op, hint="Is the server up, and reachable here?")
    if state is not None and state[:2] in _LOGIN:
        return ConfigurationError(f"cannot connect to the {server}: {text}", op=op, hint="Check the connection.")
    if state is not None and state[:2] in _UNAVAILABLE_CLASSES:
        return Unavailable(f"the {server} went away: {text}", op=op)
    if state in _RETRYABLE:
        return RetryableError(f"the {server} rolled back: {text}", op=op)
    if state == _DEADLOCK:
        return Deadlock(f"the {server} rolled back: {text}", op=op, table=table or _table(error))
    hint = _HINTS.get(state or "") or _HINTS.get((state or "")[:2])
    if state in _CONFLICTS:
        return Conflict(
            f"the {server} refuses: {text}",
            reason=_CONFLICTS[state],
            op=op,
            table=table or _table(error),
            hint=hint,
        )
    kind = ConfigurationError if state in ("42501", "25006") else TargetError
    return kind(
        f"the {server} refuses: {text}",
        op=op,
        table=table or _table(error),
        column=copy_column(error) or error.diag.column_name,
        hint=hint,
    )


def copy_line(error: psycopg.Error) -> int | None:
    """The line, from 1, of the COPY data that the server refused."""
    found = _COPY_PLACE.search(error.diag.context or "")
    return int(found["line"]) if found else None


def copy_column(error: psycopg.Error) -> str | None:
    """The column of the COPY data that the server refused."""
    found = _COPY_PLACE.search(error.diag.context or "")
    return found["column"].strip('"') if found and found["column"] else None


def _message(error: psycopg.Error) -> str:
    primary = error.diag.message_primary or str(error).strip()
    detail = error.diag.message_detail
    return " ".join(f"{primary}; {detail}".split()) if detail else " ".join(primary.split())


def _table(error: psycopg.Error) -> str | None:
    if error.diag.table_name is None:
        return None
    return f"{error.diag.schema_name}.{error.diag.table_name}"

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
from airflow_parallel_apply.pipeline.target.postgres.wording import wording

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
    "42501": "Grant the privilege to the role of the target connection; where it must be the owner, "
    "`parallel-apply check --ddl apply` has the command.",
    "42P01": "Create the table in the target, or exclude it from the pipeline.",
    "42703": "Add the column to the target's table.",
    "25006": "Connect to the primary, not to a standby.",
    "54001": "At the target a trigger or a rule calls itself: `parallel-apply check` names those that act here.",
    "22P05": "The encoding of the target's database lacks a character of the source's: use one with the encoding UTF8.",
    "22001": "The target's column is narrower than the source's: `parallel-apply check` has the ALTER TABLE.",
    "22003": "The target's column is narrower than the source's: `parallel-apply check` has the ALTER TABLE.",
    "22": "The target's column has another type than the source's: `parallel-apply check` has the ALTER TABLE.",
}
_CHECK: Final = "23514"
_NOT_SUPPORTED: Final = "0A000"
_NOT_NULL: Final = "23502"
_PRIVILEGE: Final = "42501"
_RAISED: Final = ("P0001", "P0004")
_ENUM: Final = re.compile(r"invalid input value for enum (.+?): ", re.DOTALL)
_IN_FUNCTION: Final = re.compile(r"PL/pgSQL function (\S+)")
_UNIQUE: Final = "23505"
_TAKEN: Final = (
    "Where the source has no such key any more, since it moved to other columns, run ALTER TABLE {table} DROP "
    "CONSTRAINT {constraint} at the target (DROP INDEX for an index alone), then run again. Else: did somebody else "
    "write the row, or did the copies differ at the start? `parallel-apply compare` shows it."
)
_NO_PARTITION: Final = (
    "The target's table has no partition for this row: create one there (CREATE TABLE ... PARTITION OF ...), then run "
    "again."
)
_TABLE_CHECK: Final = (
    "The target has a check constraint that the source's row does not meet. Run ALTER TABLE {table} DROP CONSTRAINT "
    '"{constraint}"; or make it as the source\'s is. Then run again.'
)
_DOMAIN_CHECK: Final = (
    "The target's domain has a constraint that the source's value does not meet. Run ALTER DOMAIN {domain} DROP "
    'CONSTRAINT "{constraint}"; or make it as the source\'s is. Then run again.'
)
_DROP_NOT_NULL: Final = (
    "The target demands a value that the source has none for. Run ALTER TABLE {table} ALTER COLUMN "
    '"{column}" DROP NOT NULL; then run again.'
)
_NO_LABEL: Final = (
    "The target's enum lacks a label that the source's has: add it there (ALTER TYPE {enum} ADD VALUE ...), then run "
    "again."
)
_ROW_SECURITY: Final = (
    "The target's table has row security. As a superuser let the role bypass it (ALTER ROLE ... BYPASSRLS), then run "
    "again."
)
_RULE: Final = (
    "A rule of the target's table acts on applied rows: `parallel-apply check` names it, and the command that keeps it "
    "from them. Then run again."
)
_RAISED_BY: Final = (
    "At the target {where} raised this, called by a trigger, a default or a check. To keep a trigger from applied rows "
    "let the role set session_replication_role, and the trigger be neither ENABLE ALWAYS nor ENABLE REPLICA. Then run "
    "again."
)

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
    text, values = wording(error)
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
    hint = _hint(error, state or "", table)
    if state in _CONFLICTS:
        return Conflict(
            f"the {server} refuses: {text}",
            reason=_CONFLICTS[state],
            op=op,
            table=table or _table(error),
            hint=hint,
            values=values,
        )
    kind = ConfigurationError if state in ("42501", "25006") else TargetError
    return kind(
        f"the {server} refuses: {text}",
        op=op,
        table=table or _table(error),
        column=copy_column(error) or error.diag.column_name,
        hint=hint,
        values=values,
    )


def copy_line(error: psycopg.Error) -> int | None:
    """The line, from 1, of the COPY data that the server refused."""
    found = _COPY_PLACE.search(error.diag.context or "")
    return int(found["line"]) if found else None


def copy_column(error: psycopg.Error) -> str | None:
    """The column of the COPY data that the server refused."""
    found = _COPY_PLACE.search(error.diag.context or "")
    return found["column"].strip('"') if found and found["column"] else None


def _hint(error: psycopg.Error, state: str, table: str | None) -> str | None:
    """What leads on, as precisely as the server's report allows."""
    if state == _UNIQUE and error.diag.constraint_name is not None:
        return _TAKEN.format(table=_table(error) or table, constraint=error.diag.constraint_name)
    if state == _CHECK and error.diag.constraint_name is None:
        return _NO_PARTITION
    if state == _CHECK and error.diag.datatype_name is not None:
        return _DOMAIN_CHECK.format(domain=error.diag.datatype_name, constraint=error.diag.constraint_name)
    if state == _CHECK:
        return _TABLE_CHECK.format(table=_table(error) or table, constraint=error.diag.constraint_name)
    if state == _NOT_NULL and error.diag.column_name is not None:
        return _DROP_NOT_NULL.format(table=_table(error) or table, column=error.diag.column_name)
    primary = error.diag.message_primary or ""
    enum = _ENUM.match(primary)
    if enum:
        return _NO_LABEL.format(enum=enum[1])
    if state == _PRIVILEGE and "row-level security" in primary:
        return _ROW_SECURITY
    if state == _NOT_SUPPORTED and ("RETURNING on relation" in primary or "rules are not supported" in primary):
        return _RULE
    if state in _RAISED:
        return _RAISED_BY.format(where=_function(error))
    return _HINTS.get(state) or _HINTS.get(state[:2])


def _function(error: psycopg.Error) -> str:
    """The function that raised an error, by its context, which for PL/pgSQL begins with its name."""
    found = _IN_FUNCTION.search(error.diag.context or "")
    return f"the function {found[1]}" if found else "a function"


def _table(error: psycopg.Error) -> str | None:
    if error.diag.table_name is None:
        return None
    return f"{error.diag.schema_name}.{error.diag.table_name}"

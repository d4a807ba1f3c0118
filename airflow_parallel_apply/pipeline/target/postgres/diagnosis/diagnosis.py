"""Translates PostgreSQL's reports into errors of the pipeline, branched by what the caller may do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.wording import wording
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.logins import LOGIN_HINT, hint_told, hint_while_away, refuses_login
from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.raising import function_of
from airflow_parallel_apply.postgres.settings import RESET_HINT

_UNAVAILABLE_CLASSES: Final = (
    sqlstate.CONNECTION_CLASS,
    sqlstate.RESOURCES_CLASS,
    sqlstate.OPERATOR_CLASS,
    sqlstate.SYSTEM_CLASS,
)
"""Connection, resources, operator intervention, system errors."""

_RETRYABLE: Final = (
    sqlstate.SERIALIZATION_FAILURE,
    sqlstate.COMPLETION_UNKNOWN,
    sqlstate.LOCK_NOT_AVAILABLE,
    sqlstate.IDLE_IN_TRANSACTION_TIMEOUT,
)
"""Serialization, unknown outcome, lock timeout, and a transaction that its own process left standing."""
_LOGIN: Final = (sqlstate.LOGIN_CLASS, sqlstate.CATALOG_CLASS)

_CONFLICTS: Final = {
    sqlstate.UNIQUE_VIOLATION: ConflictReason.UNIQUE,
    sqlstate.EXCLUSION_VIOLATION: ConflictReason.EXCLUSION,
    sqlstate.FOREIGN_KEY_VIOLATION: ConflictReason.FOREIGN_KEY,
}

_HINTS: Final = {
    sqlstate.UNIQUE_VIOLATION: "The row is in the target already. Did somebody else write it, or did the "
    "copies differ at the start?",
    sqlstate.EXCLUSION_VIOLATION: "A row in the target excludes this one. Did somebody else write it, or did "
    "the copies differ before?",
    sqlstate.FOREIGN_KEY_VIOLATION: "A row that this one refers to is not in the target. Let the role set "
    "session_replication_role.",
    sqlstate.NOT_NULL_VIOLATION: "The target demands a value that the source has none for.",
    sqlstate.INSUFFICIENT_PRIVILEGE: "Grant the privilege to the role of the target connection; where it "
    "must be the owner, `parallel-apply check --ddl apply` has the command, but of what is followed no more: make the "
    "role its owner.",
    sqlstate.DUPLICATE_PREPARED_STATEMENT: RESET_HINT,
    sqlstate.UNDEFINED_TABLE: "It was there a moment ago: somebody renamed, moved or dropped it. Undo that; or run "
    "again, which says how to make it and copy its rows anew.",
    sqlstate.UNDEFINED_COLUMN: "Add the column to the target's table.",
    sqlstate.READ_ONLY_TRANSACTION: "Connect to the primary, not to a standby.",
    sqlstate.STATEMENT_TOO_COMPLEX: "At the target a trigger or a rule calls itself: `parallel-apply check` names "
    "those that act here.",
    sqlstate.UNTRANSLATABLE_CHARACTER: "The encoding of the target's database lacks a character of the "
    "source's: use one with the encoding UTF8.",
    sqlstate.STRING_TOO_LONG: "The target's column is narrower than the source's: `parallel-apply check` has "
    "the ALTER TABLE.",
    sqlstate.NUMBER_OUT_OF_RANGE: "The target's column is narrower than the source's: `parallel-apply check` "
    "has the ALTER TABLE.",
    sqlstate.DATA_CLASS: "The target's column has another type than the source's: `parallel-apply check` has "
    "the ALTER TABLE.",
}
_RAISED: Final = (sqlstate.RAISED, sqlstate.ASSERTION_FAILED)
_ENUM: Final = re.compile(r"invalid input value for enum (.+?): ", re.DOTALL)
_TAKEN: Final = (
    "Where the source has no such key any more, since it moved to other columns, run ALTER TABLE {table} DROP "
    "CONSTRAINT {constraint} at the target (DROP INDEX for an index alone), then run again. Else: did somebody else "
    "write the row, or did the copies differ at the start? `parallel-apply compare` shows it."
)
_EXCLUDED: Final = (
    "A row in the target excludes this one. Where the source has no such constraint, run ALTER TABLE {table} DROP "
    "CONSTRAINT {constraint} at the target, then run again. Else: did somebody else write that row, or did the copies "
    "differ at the start? `parallel-apply compare` shows it."
)
_NO_PARTITION: Final = (
    "The target's table has no partition for this row: create one there. Run CREATE TABLE {partition} PARTITION OF "
    "{table} DEFAULT; or one with the bounds that the source's has. Then run again."
)
_TABLE_CHECK: Final = (
    "The target has a check constraint that the source's row does not meet. Run ALTER TABLE {table} DROP CONSTRAINT "
    "{constraint}; or make it as the source's is. Then run again."
)
_DOMAIN_CHECK: Final = (
    "The target's domain has a constraint that the source's value does not meet. Run ALTER DOMAIN {domain} DROP "
    "CONSTRAINT {constraint}; or make it as the source's is. Then run again."
)
_DROP_NOT_NULL: Final = (
    "The target demands a value that the source has none for. Run ALTER TABLE {table} ALTER COLUMN "
    "{column} DROP NOT NULL; then run again."
)
_DOMAIN_NOT_NULL: Final = (
    "The target's domain demands a value that the source has none for. Run ALTER DOMAIN {domain} DROP NOT NULL; then "
    "run again."
)
RENAMED_AHEAD: Final = "Where the target has that label under a newer name already, do neither: copy the table anew"
NO_LABEL: Final = (
    "The target's enum lacks a label that the source's has: add it to {enum} there (ADD VALUE); or, if the "
    "source gave an old label that name, rename that one (RENAME VALUE), which changes older rows too. "
    f"{RENAMED_AHEAD}. Then run again."
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

_FAILED_IN: Final = (
    "At the target the function {where} failed, called by a trigger, an index, a default or a check: it has to work "
    "for the role of the target connection, under its search_path. To keep a trigger from applied rows let the role "
    "set session_replication_role, and the trigger be neither ENABLE ALWAYS nor ENABLE REPLICA. Then run again."
)
_NAMELESS: Final = (
    sqlstate.DATA_CLASS,
    sqlstate.LIMIT_CLASS,
    sqlstate.OBJECT_STATE_CLASS,
    sqlstate.RAISED_CLASS,
)
"""Errors of which the server does not tell the table."""

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
        if refuses_login(text):
            return ConfigurationError(f"cannot connect to the {server}: {text}", op=op, hint=LOGIN_HINT)
        if "does not exist" in text:
            return ConfigurationError(f"cannot connect to the {server}: {text}", op=op, hint="Check the connection.")
        return Unavailable(f"cannot reach the {server}: {text}", op=op, hint=hint_while_away(text))
    if state is not None and state[:2] in _LOGIN:
        return ConfigurationError(f"cannot connect to the {server}: {text}", op=op, hint="Check the connection.")
    if state is not None and state[:2] in _UNAVAILABLE_CLASSES:
        is_short = state[:2] == sqlstate.RESOURCES_CLASS
        what = f"the {server} lacks what it needs" if is_short else f"the {server} went away"
        return Unavailable(f"{what}: {text}", op=op, hint=error.diag.message_hint or hint_told(text))
    if state in _RETRYABLE:
        return RetryableError(f"the {server} rolled back: {text}", op=op)
    if state == sqlstate.DEADLOCK_DETECTED:
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
    kind = (
        ConfigurationError
        if state in (sqlstate.INSUFFICIENT_PRIVILEGE, sqlstate.READ_ONLY_TRANSACTION)
        else TargetError
    )
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
    """Say what to do next, as precisely as the server's report allows."""
    found = error.diag
    place = quoted(found.schema_name or "", found.table_name) if found.table_name is not None else table
    constraint = quoted(found.constraint_name) if found.constraint_name is not None else None
    if state == sqlstate.UNIQUE_VIOLATION and constraint is not None:
        return _TAKEN.format(table=place, constraint=constraint)
    if state == sqlstate.EXCLUSION_VIOLATION and constraint is not None:
        return _EXCLUDED.format(table=place, constraint=constraint)
    if state == sqlstate.CHECK_VIOLATION and constraint is None:
        schema, name = found.schema_name or "", found.table_name or ""
        return _NO_PARTITION.format(partition=quoted(schema, f"{name}_default"), table=quoted(schema, name))
    domain = quoted(found.schema_name or "", found.datatype_name) if found.datatype_name is not None else None
    if state == sqlstate.NOT_NULL_VIOLATION and domain is not None:
        return _DOMAIN_NOT_NULL.format(domain=domain)
    if state == sqlstate.CHECK_VIOLATION and domain is not None:
        return _DOMAIN_CHECK.format(domain=domain, constraint=constraint)
    if state == sqlstate.CHECK_VIOLATION:
        return _TABLE_CHECK.format(table=place, constraint=constraint)
    if state == sqlstate.NOT_NULL_VIOLATION and found.column_name is not None:
        return _DROP_NOT_NULL.format(table=place, column=quoted(found.column_name))
    function = function_of(error)
    if function is not None and state[:2] in (sqlstate.DATA_CLASS, sqlstate.ACCESS_CLASS) and not _is_denied(state):
        return _FAILED_IN.format(where=function)
    primary = error.diag.message_primary or ""
    enum = _ENUM.match(primary)
    if enum:
        return NO_LABEL.format(enum=enum[1])
    if state == sqlstate.INSUFFICIENT_PRIVILEGE and "row-level security" in primary:
        return _ROW_SECURITY
    if state == sqlstate.FEATURE_NOT_SUPPORTED and (
        "RETURNING on relation" in primary or "rules are not supported" in primary
    ):
        return _RULE
    if state in _RAISED:
        return _RAISED_BY.format(where=_function(error))
    return _HINTS.get(state) or _HINTS.get(state[:2]) or found.message_hint


@contextmanager
def naming_table(table: str) -> Iterator[None]:
    """Around a statement about one table: name it in the errors that the server names none in."""
    try:
        yield
    except psycopg.Error as error:
        if error.diag.table_name is not None or (error.sqlstate or "")[:2] not in _NAMELESS:
            raise
        raise translate(error, op="commit", table=table) from error


def _function(error: psycopg.Error) -> str:
    found = function_of(error)
    return "a function" if found is None else f"the function {found}"


def _is_denied(state: str) -> bool:
    return state == sqlstate.INSUFFICIENT_PRIVILEGE


def _table(error: psycopg.Error) -> str | None:
    if error.diag.table_name is None:
        return None
    return f"{error.diag.schema_name}.{error.diag.table_name}"

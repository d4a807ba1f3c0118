"""Constraints of the target that the source's rows offend against: the statements that take them away, by name."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.rights import current_role
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica, replica_grant
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.quoting import quoted

_NAME: Final = r'"(?:[^"]|"")+"'
_DROPPING: Final = re.compile(
    rf"ALTER TABLE (?P<table>(?P<schema>{_NAME})\.{_NAME}) DROP CONSTRAINT (?P<name>{_NAME}) at the target "
    r"\(DROP INDEX for an index alone\)"
)
_IS_CONSTRAINT: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_constraint k
    WHERE k.conrelid = to_regclass(%(table)s::text)
        AND '"' || replace(k.conname, '"', '""') || '"' = %(name)s::text
)
"""
_FIRES: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass(%s) AND tgenabled IN ('O', 'A'))
"""
"""Those of foreign keys are among them."""
_DOMAIN: Final = """
WITH RECURSIVE below (oid, base, depth) AS (
    SELECT t.oid, t.typbasetype, 0
    FROM pg_catalog.pg_type t
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = %s AND t.typname = %s
    UNION ALL
    SELECT t.oid, t.typbasetype, below.depth + 1
    FROM below
    JOIN pg_catalog.pg_type t ON t.oid = below.base AND t.typtype = 'd'
)
SELECT n.nspname::text, t.typname::text
FROM below
JOIN pg_catalog.pg_constraint k ON k.contypid = below.oid AND k.conname = %s
JOIN pg_catalog.pg_type t ON t.oid = below.oid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
ORDER BY below.depth
LIMIT 1
"""


def name_constraint(
    connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None
) -> None:
    """Complete the hint of an error of a unique index, a domain or a foreign key, after the rollback. Errors:
    psycopg's own.
    """
    if not isinstance(cause, psycopg.Error) or error.hint is None:
        return
    if cause.sqlstate in (sqlstate.UNIQUE_VIOLATION, sqlstate.EXCLUSION_VIOLATION):
        _name_right(connection, error, cause)
    if cause.sqlstate == sqlstate.UNIQUE_VIOLATION and (found := _DROPPING.search(error.hint)):
        here = connection.execute(_IS_CONSTRAINT, {"table": found["table"], "name": found["name"]}).fetchone()
        # A unique index need not be a constraint's, which the server's report does not tell.
        drop = f"ALTER TABLE {found['table']} DROP CONSTRAINT {found['name']}"
        if here != (True,):
            drop = f"DROP INDEX {found['schema']}.{found['name']}"
        error.hint = error.hint.replace(found[0], f"{drop} at the target")
    elif cause.sqlstate == sqlstate.CHECK_VIOLATION and cause.diag.datatype_name is not None:
        # The one that the server names may have it from the domain that it is made of.
        domain = (cause.diag.schema_name or "", cause.diag.datatype_name)
        owner = connection.execute(_DOMAIN, [*domain, cause.diag.constraint_name]).fetchone()
        if owner is not None:
            error.hint = error.hint.replace(f"ALTER DOMAIN {quoted(*domain)} ", f"ALTER DOMAIN {quoted(*owner)} ")
    elif cause.sqlstate == sqlstate.FOREIGN_KEY_VIOLATION:
        _name_reference(connection, error)


def _name_right(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: psycopg.Error) -> None:
    """Rows that hand a value on are taken out and put back, which triggers and keys would take for deletions."""
    table = quoted(cause.diag.schema_name or "", cause.diag.table_name or "")
    if connection.execute(_FIRES, [table]).fetchone() == (True,) and not may_be_replica(connection):
        error.hint = (
            f"{error.hint} Or, if rows of the source exchange such values, let the target put its triggers and foreign "
            f"keys aside while it does the same: run {replica_grant(current_role(connection))} there, as a superuser; "
            "then run again."
        )


def _name_reference(connection: psycopg.Connection[Any], error: ParallelApplyError) -> None:
    if may_be_replica(connection):
        # As a replica it passes all but those that are only made now, or that were enabled for replicas.
        error.hint = (
            "At the target a row refers to one that is not there, or that goes now. Did somebody else write there, or "
            "did the copies differ at the start? `parallel-apply compare` shows it."
        )
        return
    error.hint = (
        "At the target a row refers to one that is not there, or that goes now. Let the target's foreign keys pass: "
        f"run {replica_grant(current_role(connection))} at the target, as a superuser; then run again. "
        "Where the source has the same key, somebody else changed the target: `parallel-apply compare` shows it."
    )

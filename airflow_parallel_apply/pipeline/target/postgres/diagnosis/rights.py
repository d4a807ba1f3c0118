"""Rights that the target's role lacks in the middle of a run: the GRANT, by name."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.quoting import quoted

_DENIED: Final = re.compile(r"permission denied for (?P<kind>schema|table) (?P<name>.+)", re.DOTALL)
_ALSO_DENIED: Final = re.compile(r"permission denied for (?P<kind>sequence|tablespace) (?P<name>.+)", re.DOTALL)
_NOT_OURS: Final = ("permission denied to terminate process", "must be owner of table s_")
_FORMER_ROLE: Final = """
SELECT o.rolname::text, current_user::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
WHERE c.oid = to_regclass(%s) AND NOT o.rolsuper AND o.rolname <> current_user
"""
_OF_SEQUENCES: Final = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND c.relname = %s AND NOT has_sequence_privilege(c.oid, 'USAGE')
"""
_OF_SCHEMAS: Final = """
SELECT current_user, ARRAY(
    SELECT p FROM unnest(ARRAY['USAGE', 'CREATE']) p WHERE NOT has_schema_privilege(n.oid, p)
), ARRAY[n.nspname::text]
FROM pg_catalog.pg_namespace n
WHERE n.nspname = %s
"""
_OF_TABLES: Final = """
SELECT current_user, ARRAY(
    SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
    WHERE NOT has_table_privilege(c.oid, p)
), ARRAY[n.nspname::text, c.relname::text]
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE %s::text IN (c.relname::text, format('%%s.%%s', n.nspname, c.relname))
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""


def name_grant(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None) -> None:
    """Give an error of a right that is missing the statement that gives it, after the rollback, where the server's
    message names one thing alone. Errors: psycopg's own.
    """
    if not isinstance(cause, psycopg.Error) or cause.sqlstate != sqlstate.INSUFFICIENT_PRIVILEGE:
        return
    if "row-level security" in (cause.diag.message_primary or ""):
        error.hint = (
            "The target's table has row security. Run ALTER ROLE "
            f"{quoted(current_role(connection))} BYPASSRLS at the target, as a superuser; then run again."
        )
        return
    denied = _DENIED.fullmatch(cause.diag.message_primary or "")
    if denied is None:
        _name_other_grant(connection, error, cause.diag.message_primary or "")
        return
    is_schema, name = denied["kind"] == "schema", denied["name"]
    if not is_schema and error.table is not None:
        name = error.table
    found = connection.execute(_OF_SCHEMAS if is_schema else _OF_TABLES, [name]).fetchall()
    lacking = [(role, rights, path) for role, rights, path in found if rights]
    if len(lacking) != 1:
        return
    ((role, rights, path),) = lacking
    # Of a schema that the role may use what is missing is to make tables in it.
    granted = ", ".join(rights[:1] if is_schema else rights)
    kind = "SCHEMA" if is_schema else "TABLE"
    error.hint = (
        f"Run GRANT {granted} ON {kind} {quoted(*path)} TO {quoted(role)} at the target, as its owner; then run "
    )
    error.hint += "again."


def _name_other_grant(connection: psycopg.Connection[Any], error: ParallelApplyError, text: str) -> None:
    """The same for a sequence behind a default of the target's own, and for the tablespace where the role makes its
    tables.
    """
    denied = _ALSO_DENIED.fullmatch(text)
    if denied is None:
        _name_former_role(connection, error, text)
        return
    right, path = "CREATE ON TABLESPACE", (denied["name"],)
    if denied["kind"] == "sequence":
        found = connection.execute(_OF_SEQUENCES, [denied["name"]]).fetchall()
        if len(found) != 1:
            return
        right, path = "USAGE ON SEQUENCE", found[0]
    role = quoted(current_role(connection))
    error.hint = f"Run GRANT {right} {quoted(*path)} TO {role} at the target, as its owner; then run again."


def current_role(connection: psycopg.Connection[Any]) -> str:
    """The role that acts, which need not be the login: `ALTER ROLE … SET role`. Errors: psycopg's own."""
    (role,) = connection.execute("SELECT current_user::text").fetchone() or ("",)
    return str(role)


def _name_former_role(connection: psycopg.Connection[Any], error: ParallelApplyError, text: str) -> None:
    """Sessions and staging that a run under another role has left are that role's to end and to drop."""
    if not text.startswith(_NOT_OURS):
        return
    found = connection.execute(_FORMER_ROLE, [f"{SCHEMA}.pipeline"]).fetchone()
    if found is not None:
        owner, role = found
        error.hint = (
            f"What runs under the role {owner} have left is that role's. Run GRANT {quoted(owner)} TO {quoted(role)} "
            "at the target, as a superuser; then run again."
        )

"""Objects of the target that make a statement fail, and that the server's report does not name: looked for after the
rollback, for the hint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.raising import event_trigger_of, function_of, triggers_of

_PUBLISHED: Final = re.compile(r'cannot (?:update|delete from) table "(?P<name>.+)" because it does not have a replica')
_EXPRESSIONS: Final = """
WITH held AS (
    SELECT c.oid FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE format('%%s.%%s', n.nspname, c.relname) = %(table)s AND c.relkind IN ('r', 'p')
), parts AS (
    SELECT oid FROM held UNION SELECT t.relid FROM held, pg_catalog.pg_partition_tree(held.oid) t
), expressions (name, command, tree) AS (
    SELECT 'the index ' || i.relname, format('DROP INDEX %%I.%%I', n.nspname, i.relname),
           concat(x.indexprs, x.indpred)
    FROM pg_catalog.pg_index x
    JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid AND NOT i.relispartition
    JOIN pg_catalog.pg_namespace n ON n.oid = i.relnamespace
    WHERE x.indrelid IN (SELECT oid FROM parts) AND (x.indexprs IS NOT NULL OR x.indpred IS NOT NULL)
    UNION ALL
    SELECT 'the constraint ' || k.conname,
           format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname, k.conname), k.conbin::text
    FROM pg_catalog.pg_constraint k
    JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE k.contype = 'c' AND k.conislocal AND k.conrelid IN (SELECT oid FROM parts)
    UNION ALL
    SELECT 'the column ' || a.attname, format('ALTER TABLE %%I.%%I DROP COLUMN %%I', n.nspname, c.relname, a.attname),
           d.adbin::text
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE a.attgenerated <> '' AND a.attrelid IN (SELECT oid FROM held)
)
SELECT name, command, EXISTS (
    SELECT FROM pg_catalog.pg_proc f WHERE f.prosrc = %(function)s AND tree ~ (':(op)?funcid ' || f.oid || ' ')
) OR (%(is_read)s AND tree LIKE '%%COERCEVIAIO%%')
FROM expressions
ORDER BY 1
"""
"""With each, whether it calls the function of the server that failed, or reads a text as another type's value, if that
failed.
"""
_INDEXES: Final = """
SELECT i.relname::text,
       CASE WHEN k.conname IS NULL THEN format('DROP INDEX %%I.%%I', n.nspname, i.relname)
            ELSE format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname, k.conname) END
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_index x ON x.indrelid = c.oid AND NOT x.indisprimary
JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.oid AND k.conrelid = c.oid
WHERE format('%%s.%%s', n.nspname, c.relname) = %(table)s
ORDER BY 1
"""
_TABLES: Final = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = %s AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relreplident IN ('d', 'n', 'i')
"""


def name_culprit(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None) -> None:
    """Complete the hint of an error of the target, where one of these may be behind it. Errors: psycopg's own."""
    if not isinstance(cause, psycopg.Error):
        return
    if function_of(cause) is not None:
        _name_caller(connection, error, cause)
    elif _may_be_of_expression(cause) and error.table is not None and error.column is None:
        _name_expressions(connection, error, cause, error.table)
    elif cause.sqlstate == sqlstate.PROGRAM_LIMIT and error.table is not None and _is_of_index(cause):
        _name_indexes(connection, error, error.table)
    elif found := _PUBLISHED.match(cause.diag.message_primary or ""):
        _name_published(connection, error, found["name"])


def _may_be_of_expression(cause: psycopg.Error) -> bool:
    """A character that the encoding lacks is refused before there is a value."""
    state = cause.sqlstate or ""
    return state[:2] == sqlstate.DATA_CLASS and state != sqlstate.UNTRANSLATABLE_CHARACTER


def _is_of_index(cause: psycopg.Error) -> bool:
    return (cause.diag.message_primary or "").startswith("index row ")


def _name_expressions(
    connection: psycopg.Connection[Any], error: ParallelApplyError, cause: psycopg.Error, table: str
) -> None:
    """Values that were read already fail in what is computed of them alone: all of it, where nothing tells which."""
    values = {
        "table": table,
        "function": cause.diag.source_function,
        "is_read": cause.sqlstate == sqlstate.NO_SUCH_VALUE,
    }
    found = connection.execute(_EXPRESSIONS, values).fetchall()
    if not found:
        return
    at_fault = [(name, command) for name, command, fails in found if fails]
    names, commands = _either(at_fault or [(name, command) for name, command, _ in found])
    error.hint = (
        f"At the target an expression over the row's values fails: {names}. Run {commands} at the target, or what "
        "lets it take the source's values; then run again."
    )


def _name_indexes(connection: psycopg.Connection[Any], error: ParallelApplyError, table: str) -> None:
    """Those that the key does not need."""
    found = connection.execute(_INDEXES, {"table": table}).fetchall()
    if found:
        names, commands = _either(found)
        error.hint = (
            f"The source's value is too large for an index of the target: {names}. Run {commands} at the target; "
            "then run again."
        )


def _either(found: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Names of which one is behind an error, and the commands that take them out of the way."""
    one = "" if len(found) == 1 else "one of "
    return one + ", ".join(name for name, _ in found), "; ".join(command for _, command in found)


def _name_published(connection: psycopg.Connection[Any], error: ParallelApplyError, name: str) -> None:
    found = connection.execute(_TABLES, [name]).fetchall()
    if len(found) == 1:
        error.hint = (
            f"A publication of the target sends the table's changes. Run ALTER TABLE {quoted(*found[0])} REPLICA "
            "IDENTITY FULL at the target; then run again."
        )


def _name_caller(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: psycopg.Error) -> None:
    """Name the event trigger, or the triggers, that called what failed."""
    event_trigger = event_trigger_of(connection, cause)
    if event_trigger is not None:
        error.hint = (
            f"The target's event trigger {event_trigger} calls it for each statement that makes or drops a table, as "
            f"runs do in the schema {SCHEMA}: let it pass over them. Or run ALTER EVENT TRIGGER "
            f"{quoted(event_trigger)} DISABLE; then run again."
        )
        return
    is_replica = may_be_replica(connection)
    found = triggers_of(connection, cause, enabled=["A", "R" if is_replica else "O"], table=error.table)
    if not found:
        return
    verb, also = ("ENABLE", "") if is_replica else ("DISABLE", ", or let the role set session_replication_role")
    names = ", ".join(f"the trigger {name} of {table}" for table, name in found)
    commands = "; ".join(f"ALTER TABLE {table} {verb} TRIGGER {quoted(name)}" for table, name in found)
    error.hint = (
        f"At the target the function {function_of(cause)} was called by {names}. Run {commands} at the "
        f"target{also}, to keep it from applied rows; then run again."
    )

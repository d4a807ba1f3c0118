"""Labels that an enum of the target lacks: the statement that adds the one that a row has."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import NO_LABEL, RENAMED_AHEAD
from airflow_parallel_apply.postgres.quoting import quoted

_REFUSED: Final = re.compile(r'invalid input value for enum (?P<enum>.+?): "(?P<label>.*)"\Z', re.DOTALL)
_IN_COLUMNS: Final = """
WITH RECURSIVE parts (oid) AS (
    SELECT a.atttypid
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE format('%%s.%%s', n.nspname, c.relname) = %(table)s AND a.attname = coalesce(%(column)s::text, a.attname)
    UNION
    SELECT below.oid
    FROM parts
    JOIN pg_catalog.pg_type t ON t.oid = parts.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL
        SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) AS below (oid)
)
SELECT n.nspname::text, t.typname::text
FROM parts
JOIN pg_catalog.pg_type t ON t.oid = parts.oid AND t.typtype = 'e'
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE format_type(t.oid, NULL) = %(enum)s
"""


def say_label(error: ParallelApplyError, cause: psycopg.Error, relation: Relation) -> None:
    """Give the error of a value that an enum refused the command that adds it, where the source's column is of the enum
    of that name: the value then is a label, part of the source's definitions, and no row's secret.
    """
    refused = _REFUSED.match(cause.diag.message_primary or "")
    if refused is None:
        return
    names = {column.type_name.removesuffix("[]") for column in relation.columns}
    enum = next((name for name in sorted(names) if f".{name}".endswith(f".{refused['enum']}")), None)
    if enum is not None:
        error.hint = _adding(enum, refused["label"], relation.name)


def name_label(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None) -> None:
    """The same of an enum inside a domain, a composite type, a range or an array, after the rollback. Those have the
    source's names, else the hint would be the command that makes them so. Errors: psycopg's own.
    """
    refused = _REFUSED.match(cause.diag.message_primary or "") if isinstance(cause, psycopg.Error) else None
    if refused is None or error.hint != NO_LABEL.format(enum=refused["enum"]):
        return
    names = {"table": error.table, "column": error.column, "enum": refused["enum"]}
    found = connection.execute(_IN_COLUMNS, names).fetchone()
    if found is not None:
        error.hint = _adding(quoted(*found), refused["label"], error.table)


def _adding(enum: str, label: str, table: str | None) -> str:
    """`enum`: as SQL."""
    copying = "" if table is None else f" (`{command_line('recopy', [table])}`)"
    return (
        f"The target's enum lacks a label that the source's has. Run ALTER TYPE {enum} ADD VALUE "
        f"{sql.Literal(label).as_string()} at the target (with BEFORE or AFTER where the order matters); or, if the "
        "source gave an old label that name, rename that one (RENAME VALUE), which changes older rows too. "
        f"{RENAMED_AHEAD}{copying}. Then run again."
    )

"""Types that the target lacks, and the commands that make its missing tables and columns name. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres.definitions import TypeDefinition, read_definitions, read_types
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, find_tables
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.session import Session as TargetSession
from airflow_parallel_apply.postgres.quoting import quoted

_MADE = """
SELECT a.attrelid::bigint, a.attname::text, n.nspname::text, t.typname::text
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid AND t.typtype IN ('c', 'd', 'e', 'r')
JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND t.oid >= 16384
"""


def type_findings(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    *,
    expected: Sequence[Relation],
) -> tuple[Finding, ...]:
    """See `TypeCheck`."""
    with (
        closing(TargetSession(target.url, pipeline=config.pipeline)) as session,
        session.transaction("check") as connection,
    ):
        found = find_tables(connection, relations)
        wanted = [
            (relation, table)
            for relation, table in zip(relations, found, strict=True)
            if relation.columns and (table is None or table.missing_columns)
        ]
        renamed = tuple(_renamed(config, source, connection, found))
        if not wanted:
            return renamed
        kinds = dict.fromkeys(_types(config, source, wanted))
        missing = {kind: _finding(connection, kind) for kind in kinds if not _is_there(connection, kind)}
        needed = {relation.name for relation in expected}
        now = [pair for pair in wanted if pair[0].name in needed]
        due = set(_types(config, source, now)) if missing and len(now) < len(wanted) else set(kinds)
        return (*renamed, *(finding if kind in due else _later(finding) for kind, finding in missing.items()))


def _types(
    config: PipelineConfig, source: Endpoint, wanted: Sequence[tuple[Relation, TargetTable | None]]
) -> list[TypeDefinition]:
    """The types of all columns of a missing table, and of the columns that an existing one lacks; others may have their
    own.
    """
    name = f"parallel_apply {config.pipeline} check"
    with closing(SourceSession(source, application_name=name)) as session, session.errors("check"):
        missing = [relation for relation, table in wanted if table is None]
        kinds = list(read_definitions(session.catalog(), missing).types)
        for relation, table in wanted:
            if table is not None:
                kinds += read_types(session.catalog(), relation, table.missing_columns)
        return kinds


def _renamed(
    config: PipelineConfig, source: Endpoint, connection: Connection, found: Sequence[TargetTable | None]
) -> Iterator[Finding]:
    """Find types of columns that the source calls otherwise by now: neither side has a type of the other's name."""
    tables = {table.oid: table for table in found if table is not None}
    there: dict[tuple[str, str], tuple[str, str]] = {}
    for oid, column, its_schema, its_name in connection.execute(_MADE, [list(tables)]).fetchall():
        names = {one.name: one.type_name for one in tables[oid].relation.columns}
        schema, _, name = (names.get(column) or "").partition(".")
        if name.isidentifier() and schema.isidentifier() and (schema, name) != (its_schema, its_name):
            there[its_schema, its_name] = (schema, name)
    lacking = {old: new for old, new in there.items() if not _exists(connection, *new)}
    if not lacking:
        return
    application = f"parallel_apply {config.pipeline} check"
    with closing(SourceSession(source, application_name=application)) as session, session.errors("check"):
        gone = {old: new for old, new in lacking.items() if not _exists(session.catalog(), *old)}
    for old, new in gone.items():
        fix = [] if old[0] == new[0] else [f"ALTER TYPE {quoted(*old)} SET SCHEMA {quoted(new[0])}"]
        fix += [] if old[1] == new[1] else [f"ALTER TYPE {quoted(new[0], old[1])} RENAME TO {quoted(new[1])}"]
        what = f"the source has no type {'.'.join(old)} any more, which it calls {'.'.join(new)} now"
        yield new_finding(Side.TARGET, f"type {'.'.join(old)}", what, *fix, severity=Severity.WARNING)


def _is_there(connection: Connection, kind: TypeDefinition) -> bool:
    return _exists(connection, kind.schema, kind.name)


def _exists(connection: Connection, schema: str, name: str) -> bool:
    """Asks the catalog: to_regtype() refuses a role that may not use the schema."""
    query = (
        "SELECT EXISTS (SELECT FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace "
        "WHERE n.nspname = %s AND t.typname = %s)"
    )
    row = connection.execute(query, [schema, name]).fetchone()
    return row is not None and bool(row[0])


def _finding(connection: Connection, kind: TypeDefinition) -> Finding:
    fix = [kind.text]
    row = connection.execute("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", [kind.schema]).fetchone()
    if row is not None and not row[0]:
        fix.insert(0, f"CREATE SCHEMA IF NOT EXISTS {quoted(kind.schema)}")
    name = f"{kind.schema}.{kind.name}"
    return new_finding(Side.TARGET, f"type {name}", f"the type {name} is missing", *fix)


def _later(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.WARNING, note="Not needed if DDL that is on its way creates it.")

"""Types that the target lacks, and the commands that make its missing tables and columns name. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres.definitions import TypeDefinition, read_definitions, read_types
from airflow_parallel_apply.pipeline.copy.postgres.extensions import extension_findings
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import fit_of_column
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
        wanted = [_Wanted.of(relation, table) for relation, table in zip(relations, found, strict=True)]
        renamed = tuple(_renamed(config, source, connection, found))
        lacking = [one for one in wanted if one.columns != ()]
        refusing = [one._replace(columns=one.refusing) for one in wanted if one.refusing]
        if not (lacking or refusing):
            return renamed
        kinds = dict.fromkeys((*_types(config, source, lacking), *_types(config, source, refusing)))
        missing = {kind: _finding(connection, kind) for kind in kinds if not _is_there(connection, kind)}
        needed = {relation.name for relation in expected}
        now = [one for one in lacking if one.relation.name in needed]
        due = set(_types(config, source, now)) if missing else set()
        later = [one for one in (*lacking, *refusing) if one not in now]
        return (
            *renamed,
            *_extensions(config, source, connection, now, later),
            *(finding if kind in due else _later(finding) for kind, finding in missing.items()),
        )


class _Wanted(NamedTuple):
    """A table with those of its columns that the target lacks, None where it lacks the table; and with those of users'
    types that the target has with a type which may refuse their values: what makes it the source's type needs that.
    """

    relation: Relation
    columns: Sequence[str] | None
    refusing: Sequence[str]

    @classmethod
    def of(cls, relation: Relation, table: TargetTable | None) -> _Wanted:
        if table is None:
            return cls(relation, None if relation.columns else (), ())
        refusing = tuple(
            column.name
            for index, column in enumerate(relation.columns)
            if "." in column.type_name and fit_of_column(table, index) is Fit.REFUSES
        )
        return cls(relation, tuple(table.missing_columns), refusing)


def _extensions(
    config: PipelineConfig, source: Endpoint, connection: Connection, now: Sequence[_Wanted], later: Sequence[_Wanted]
) -> Iterator[Finding]:
    """Find extensions whose types these need, each once. `later`: what DDL on its way may make fit."""
    found: dict[str, Finding] = {}
    for wanted in (now, later):
        told = [
            *extension_findings(config, source, connection, [one.relation for one in wanted if one.columns is None])
        ]
        for one in wanted:
            if one.columns and any("." in column.type_name for column in one.relation.columns):
                told += extension_findings(config, source, connection, [one.relation], one.columns)
        for finding in told:
            found.setdefault(finding.where, finding if wanted is now else _later(finding))
    yield from found.values()


def _types(config: PipelineConfig, source: Endpoint, wanted: Sequence[_Wanted]) -> list[TypeDefinition]:
    """The types of all columns of a missing table, and of those columns of another one."""
    if not wanted:
        return []
    name = f"parallel_apply {config.pipeline} check"
    with closing(SourceSession(source, application_name=name)) as session, session.errors("check"):
        missing = [one.relation for one in wanted if one.columns is None]
        kinds = list(read_definitions(session.catalog(), missing).types)
        for one in wanted:
            if one.columns is not None:
                kinds += read_types(session.catalog(), one.relation, one.columns)
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
    return replace(
        finding,
        severity=Severity.WARNING,
        note="Not needed if DDL that is on its way creates it, nor by a column that is to keep another type.",
    )

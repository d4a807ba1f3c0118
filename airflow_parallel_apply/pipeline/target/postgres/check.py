"""Refuse, by name and before anything starts, what this release cannot apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg import sql
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable, find_tables


def check_target(session: Session, relations: Sequence[Relation], *, channels: int, require_empty: bool) -> None:
    """See `Target.check`: `TargetError` with all findings."""
    with session.transaction("check") as connection:
        found = find_tables(connection, relations, schema=session.schema)
        findings = [
            f"{relation.name} is missing" for relation, table in zip(relations, found, strict=True) if table is None
        ]
        tables = [table for table in found if table is not None]
        for table in tables:
            findings += _column_findings(table)
            findings += _key_findings(table, channels)
        findings += _privilege_findings(connection, session, tables)
        if channels > 1:
            findings += _foreign_key_findings(connection, session, tables)
        if require_empty and not findings:
            findings += _row_findings(connection, tables)
    if findings:
        raise TargetError(
            f"the target cannot take these tables: {'; '.join(findings)}",
            op="check",
            hint="Change the target, exclude the tables, or use one channel where that is named.",
        )


def _column_findings(table: TargetTable) -> Iterator[str]:
    name = table.relation.name
    for missing in table.missing_columns:
        yield f"{name} lacks the column {missing}"
    sent = {column.name for column in table.relation.columns}
    for column in table.columns.values():
        if column.needs_value and column.name not in sent:
            yield f"{name} demands a value for the column {column.name}, which the source does not have"


def _key_findings(table: TargetTable, channels: int) -> Iterator[str]:
    name = table.relation.name
    key = [column.name for column in table.relation.columns if column.key]
    if key and table.key_index is None:
        yield f"{name} has no unique index over exactly the source's key ({', '.join(key)})"
    if channels == 1:
        return
    for column in key:
        if column in table.columns and table.columns[column].fuzzy:
            yield f"{name} has a nondeterministic collation on the key column {column}: only with channels=1"
    for index in table.unique_indexes:
        # With the whole key among its columns an index can refuse nothing that the key's own does not.
        if key and (index.exclusion or not index.usable or not set(key) <= set(index.columns)):
            kind = "exclusion constraint" if index.exclusion else "secondary unique index"
            yield f"{name} has the {kind} {index.name}: only with channels=1"


def _privilege_findings(connection: Connection, session: Session, tables: Sequence[TargetTable]) -> Iterator[str]:
    oids = [table.oid for table in tables]
    rows = connection.execute(session.sql("tables", "missing_privileges"), {"oids": oids})
    missing: dict[int, list[str]] = {}
    for number, privilege in rows:
        missing.setdefault(number, []).append(privilege)
    for number, privileges in missing.items():
        yield f"{tables[number].relation.name}: the role has no privilege {', '.join(privileges)}"


def _foreign_key_findings(connection: Connection, session: Session, tables: Sequence[TargetTable]) -> Iterator[str]:
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute(session.sql("tables", "foreign_keys"), {"oids": [table.oid for table in tables]})
    for key in cursor:
        yield (f"the foreign key {key['name']} ties {key['child_name']} to {key['parent_name']}: only with channels=1")


def _row_findings(connection: Connection, tables: Sequence[TargetTable]) -> Iterator[str]:
    for table in tables:
        row = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(table.identifier)).fetchone()
        if row is not None and row[0]:
            yield f"{table.relation.name} has rows, and start=empty was asked for"

"""Checks what stands in a pipeline's way at a PostgreSQL target, each with the SQL that fixes it. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final

from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import (
    Finding,
    Severity,
    Side,
    command_line,
    errors,
    general_findings,
    hint_of,
    new_finding,
)
from airflow_parallel_apply.pipeline.target.expectation import Expectation, Successor, names_of
from airflow_parallel_apply.pipeline.target.postgres.catalog.columns import WITHOUT_LETTERS
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import altering_of_owner
from airflow_parallel_apply.pipeline.target.postgres.catalog.lacking_key import making_key
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import fit_of_column, retyping
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import giving_name
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, find_tables, found_instead
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import computing, creation, renaming_away, replacing
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.owners import owner_findings
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import origin_findings
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import present_name
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.exact import inexact_columns
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import MOST_COLUMNS
from airflow_parallel_apply.pipeline.target.postgres.standing import (
    about,
    apart_findings,
    computation_findings,
    guard_findings,
    nested_findings,
    privilege_findings,
    reference_findings,
    schema_findings,
    standing_findings,
    table_name,
)
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.filled import filled
from airflow_parallel_apply.postgres.pooler import POOLER_FOUND, shares_sessions
from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.settings import POOLER_HINT

OLDEST_VERSION: Final = 15
NEWEST_VERSION: Final = 18
"""The newest version that this release was tested with."""
_VERSIONS: Final = 10_000
"""Between one major version and the next, in `server_version_num`."""

_LACKS: Final = {WITHOUT_LETTERS: "counts bytes as letters where a type has a length"}
_MERGED: Final = {"EUC_JP": "stores a broken bar (U+00A6) as a fullwidth one (U+FFE4)"}
"""Encodings in which the server stores a character as another one, without an error."""

_finding: Final = partial(new_finding, Side.TARGET)

_STOPS: Final = "A run stops at the first value that would not have the same text."
_FITS: Final = {
    Fit.LOSES: (Severity.ERROR, "keeps less than the source's", ""),
    Fit.REFUSES: (Severity.WARNING, "may refuse values of the source's", _STOPS),
    Fit.REFORMATS: (Severity.WARNING, "prints values in another form than the source's", _STOPS),
}


def require_that_empty(connection: Connection, tables: Sequence[TargetTable]) -> None:
    """Errors: `TargetError` with all tables that have rows; psycopg's own."""
    refused = list(_row_findings(connection, tables))
    if refused:
        text = "; ".join(finding.what for finding in refused)
        raise TargetError(f"the target cannot take these tables: {text}", op="check", hint=hint_of(refused))


def pooler_findings(session: Session) -> tuple[Finding, ...]:
    """Find a pooler that shares the session with others. Errors: psycopg's own."""
    if not shares_sessions(session.connection(), session.another):
        return ()
    return (_finding("connection", POOLER_FOUND, note=POOLER_HINT),)


def target_findings(session: Session, expected: Expectation) -> tuple[Finding, ...]:
    """See `Target.findings`. Errors: the pipeline's."""
    with session.transaction("check") as connection:
        server = _server(connection)
        findings = list(_server_findings(server))
        findings += pooler_findings(session)
        findings += origin_findings(connection, session, expected.channels, server["role"])
        # First: the server does not alter a partition's columns.
        nested = tuple(nested_findings(connection, session, expected.followed))
        findings += nested
        there = find_tables(connection, expected.tables)
        for relation, table in zip(expected.tables, there, strict=True):
            findings += _width_findings(relation, table)
            if table is None and relation.columns and not expected.may_lack_tables:
                findings.append(_missing(connection, session, relation))
        tables = [table for table in there if table is not None]
        for table in tables:
            findings += _column_findings(table, connection.info.server_version, session.pipeline)
            findings += _type_findings(table)
            findings += _key_findings(table, expected.channels, session.pipeline)
        findings += computation_findings(connection, tables)
        closed_schemas = list(schema_findings(connection, names_of(expected.tables), alters=False))
        closed_tables = [
            *apart_findings(connection, session, (*names_of(expected.tables), *expected.followed)),
            *privilege_findings(connection, tables, server["role"]),
            *guard_findings(connection, tables, server["role"]),
        ]
        findings += [*closed_schemas, *closed_tables]
        if server["can_use_schema"] or not server["has_schema"]:
            findings += _standing_findings(connection, session, expected, {finding.where for finding in nested})
        if expected.are_empty and not closed_schemas:
            unreadable = {finding.where for finding in errors(closed_tables)}
            readable = [table for table in tables if table.relation.name not in unreadable]
            findings += _row_findings(connection, readable)
        named = [_naming_owners(connection, finding) for finding in findings]
    return tuple(dict.fromkeys(named))


def _naming_owners(connection: Connection, finding: Finding) -> Finding:
    """Name the owners of what a finding is about: what is inherited cannot be altered where it is."""
    fix = tuple(altering_of_owner(connection, command) for command in finding.fix)
    return finding if fix == finding.fix else replace(finding, fix=fix)


def _standing_findings(
    connection: Connection, session: Session, expected: Expectation, nested: Set[str]
) -> Iterator[Finding]:
    """Find what is wrong whatever form the tables are expected in. `nested`: those of which `nested_findings` tells."""
    yield from schema_findings(connection, expected.followed, alters=expected.renames)
    # By identity: both are parts of one description, and of thousands of tables each is looked at once.
    looked_at = {id(relation) for relation in expected.tables}
    others = [relation for relation in expected.settled if id(relation) not in looked_at]
    found = find_tables(connection, others) if others else ()
    yield from computation_findings(connection, [table for table in found if table is not None])
    yield from reference_findings(connection, expected.settled, expected.references)
    # Of a partition here the rows are its table's.
    succeeding = _without_predecessors(connection, session, expected.successors)
    unbegun = [relation for relation in (*expected.unbegun, *succeeding) if relation.name not in nested]
    yield from _begun_findings(connection, session, unbegun)
    if expected.altered:
        yield from owner_findings(connection, expected.altered)
        yield from standing_findings(connection, [one for one in expected.altered if id(one) not in looked_at])


def _server(connection: Connection) -> dict[str, Any]:
    cursor = connection.cursor(row_factory=dict_row)
    return cursor.execute(statement("check", "server"), {"schema": SCHEMA}).fetchone() or {}


def _server_findings(server: dict[str, Any]) -> Iterator[Finding]:
    role, database = server["role"], server["database"]
    yield from general_findings(
        Side.TARGET,
        "PostgreSQL",
        server["version"] // _VERSIONS,
        is_standby=server["is_standby"],
        oldest=OLDEST_VERSION,
        newest=NEWEST_VERSION,
    )
    if (encoding := server["encoding"]) != "UTF8":
        merged = _MERGED.get(encoding)
        yield _finding(
            "encoding",
            f"the database has the encoding {encoding}, which {merged or _LACKS.get(encoding, 'may lack characters')}",
            severity=Severity.ERROR if merged else Severity.WARNING,
            note="Use a database with the encoding UTF8.",
        )
    if server["has_schema"] and not server["can_use_schema"]:
        yield _finding(
            f"schema {SCHEMA}",
            f"role {role} may not create tables in the schema {SCHEMA}",
            f"GRANT USAGE, CREATE ON SCHEMA {quoted(SCHEMA)} TO {quoted(role)}",
        )
    elif not server["has_schema"] and not server["can_create"]:
        yield _finding(
            f"database {database}",
            f"role {role} may not create the schema {SCHEMA} in database {database}",
            f"GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(role)}",
            note="As the database's owner.",
        )


def _missing(connection: Connection, session: Session, relation: Relation) -> Finding:
    """The CREATE TABLE has all columns and the key; what else the source's table has, `pg_dump -s` tells."""
    renamed = present_name(connection, session, relation)
    if renamed is not None:
        what = f"{relation.name} is missing, and is called {'.'.join(renamed)}"
        return about(relation, what, giving_name(connection, renamed, (relation.schema, relation.table)))
    fix = [creation(relation, connection.info.server_version)]
    if (instead := found_instead(connection, relation)) is not None:
        fix.insert(0, renaming_away(relation, instead))
        what = f"{relation.name} is a {instead}, and no table"
        return about(relation, what, *fix, note="Or give this name to the table that has the rows.")
    if connection.execute("SELECT to_regnamespace(quote_ident(%s))", [relation.schema]).fetchone() == (None,):
        fix.insert(0, f"CREATE SCHEMA IF NOT EXISTS {quoted(relation.schema)}")
    note = (
        "Columns and key only. A first run with create_tables makes all of it; later `recopy` of the table with "
        "--create-tables does, and copies the rows. Use that, too, if the table was there and was dropped: its rows "
        "are gone."
    )
    return about(relation, f"{relation.name} is missing", *fix, note=note)


def _width_findings(relation: Relation, table: TargetTable | None) -> Iterator[Finding]:
    columns, twice = len(relation.columns), 0
    if table is not None and not table.missing_columns:
        twice = len(inexact_columns(table))
    note = "Leave it out with an exclude pattern."
    if not columns:
        yield about(relation, f"{relation.name} has no columns that the source sends", note=note)
    elif columns + twice > MOST_COLUMNS:
        what = f"{relation.name} has {columns} columns, and staging has room for {MOST_COLUMNS}"
        if twice:
            what += f", of which {twice} are needed for texts of columns that have other types here"
        yield about(relation, what, note=note)


def _column_findings(table: TargetTable, server_version: int, pipeline: str) -> Iterator[Finding]:
    name, target = table.relation.name, table_name(table)
    sent = {column.name: column for column in table.relation.columns}
    for missing in table.missing_columns:
        yield about(
            table.relation,
            f"{name} lacks the column {missing}",
            f"ALTER TABLE {target} ADD COLUMN {quoted(missing)} {sent[missing].type_name}",
            column=missing,
        )
    for column in table.columns.values():
        if column.needs_value and column.name not in sent:
            yield about(
                table.relation,
                f"{name} demands a value for the column {column.name}, which the source does not have",
                f"ALTER TABLE {target} ALTER COLUMN {quoted(column.name)} DROP NOT NULL",
                column=column.name,
                note="Or give the column a default.",
            )
        if column.generated and column.name in sent:
            is_wrong = column.name in table.overruled_columns
            plain = f"ALTER TABLE {target} ALTER COLUMN {quoted(column.name)} DROP EXPRESSION"
            if column.virtual:
                # The server turns none but stored ones into ordinary ones.
                type_name = sent[column.name].type_name
                plain = replacing(table.relation, column.name, type_name, server_version, is_there=True)
            yield about(
                table.relation,
                f"{name} computes the column {column.name}, so the source's values of it are not stored",
                plain,
                column=column.name,
                severity=Severity.ERROR if is_wrong else Severity.WARNING,
                note=f"Then `{command_line('recopy', [name], pipeline)}` where the table has rows."
                if is_wrong
                else "Right as it is: the source computes it, too.",
            )
    for uncomputed in table.uncomputed_columns:
        yield about(
            table.relation,
            f"{name} has the column {uncomputed} as an ordinary one, and the source computes it and does not send it",
            *computing(table, uncomputed, server_version),
            column=uncomputed,
        )


def _type_findings(table: TargetTable) -> Iterator[Finding]:
    for index, column in enumerate(table.relation.columns):
        fits = _FITS.get(fit_of_column(table, index))
        if fits is not None:
            severity, what, note = fits
            here = f"{table.relation.name} has the column {column.name} as {table.columns[column.name].type_sql}"
            yield about(
                table.relation,
                f"{here}, which {what} {column.type_name}",
                *retyping(table, index),
                column=column.name,
                severity=severity,
                note=note,
            )


def _key_findings(table: TargetTable, channels: int, pipeline: str) -> Iterator[Finding]:
    name = table.relation.name
    key = table.relation.key_names
    if key and table.key_index is None:
        commands, behind = making_key(table, pipeline)
        deferrable = "That of a deferrable constraint, which is there, is not checked at once. "
        yield about(
            table.relation,
            f"{name} has no unique index over exactly the source's key ({', '.join(key)})",
            *commands,
            note=f"{deferrable if table.has_deferrable_key else ''}{behind}.",
        )
    if channels == 1:
        return
    for column in key:
        if column in table.columns and table.columns[column].fuzzy:
            yield about(
                table.relation,
                f"{name} has a nondeterministic collation on the key column {column}: only with channels=1",
                f"ALTER TABLE {table_name(table)} ALTER COLUMN {quoted(column)} TYPE {table.columns[column].type_sql} "
                'COLLATE "default"',
                column=column,
            )


def _without_predecessors(
    connection: Connection, session: Session, successors: Sequence[Successor]
) -> Iterator[Relation]:
    """Those whose names nothing has any more that had them before."""
    for relation, former in successors:
        names = {present_name(connection, session, one) for one in former}
        if names.isdisjoint({None, (relation.schema, relation.table)}):
            yield relation


def _begun_findings(connection: Connection, session: Session, unbegun: Sequence[Relation]) -> Iterator[Finding]:
    """Find rows in tables that the pipeline is about to begin with, since they had none at the source."""
    there = find_tables(connection, unbegun) if unbegun else ()
    tables = [table for table in there if table is not None]
    for table, has_rows in zip(tables, filled(connection, [table.own_rows for table in tables]), strict=True):
        if has_rows:
            name = table.relation.name
            yield about(
                table.relation,
                f"{name} has rows, and the source's table had none when the pipeline came to follow it",
                note=f"Run `{command_line('recopy', [name], session.pipeline)}`, which replaces them; or empty the "
                "table.",
            )


def _row_findings(connection: Connection, tables: Sequence[TargetTable]) -> Iterator[Finding]:
    for table, has_rows in zip(tables, filled(connection, [table.own_rows for table in tables]), strict=True):
        if has_rows:
            yield about(
                table.relation,
                f"{table.relation.name} has rows, where the first run is to find none",
                note="Empty it, or use another start.",
            )

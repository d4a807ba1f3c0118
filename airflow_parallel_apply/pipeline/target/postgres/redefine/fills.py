"""The values that rows older than a column hold in it, where the target has the column already: checked, and given."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.exact_session import exact_session
from airflow_parallel_apply.pipeline.target.postgres.catalog.own_writes import is_ours
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import require_none_on_filling
from airflow_parallel_apply.pipeline.target.postgres.row_text import row_text
from airflow_parallel_apply.pipeline.target.postgres.session import Connection

BROUGHT: Final = is_ours(sql.Identifier("xmin"))
"""True of rows that this transaction brought: nobody else sees them, to change them by hand."""


def has_rows(connection: Connection, relation: Relation) -> bool:
    """True if the table has rows."""
    rows = connection.execute(
        sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(relation.schema, relation.table))
    ).fetchone()
    return rows is None or bool(rows[0])


def brings_rows(connection: Connection, relation: Relation) -> bool:
    """True if the table has rows that this transaction brought."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(own_rows(connection, relation), BROUGHT)
    return connection.execute(query).fetchone() == (True,)


def filling(connection: Connection, relation: Relation, column: Column, found_type: str) -> sql.Composed | None:
    """The statement that gives all rows the column's known fill; None where they have it. By their text, as rows are
    compared everywhere: not every type knows equality. `found_type`: the column's here, to which another type's value
    comes as it is printed: a cast to text says `true` for `t`, and drops a character type's blanks.
    """
    table, name = own_rows(connection, relation), sql.Identifier(column.name)
    fill = sql.SQL("NULL")
    if column.fill != "NULL":
        fill = sql.SQL(f"{column.fill}::{column.type_name}")
    others = sql.SQL("{} <> {}").format(row_text([name]), row_text([fill]))
    stored: sql.Composable = fill
    if found_type != column.type_name and column.fill != "NULL":
        stored = sql.SQL("concat({})::{}").format(fill, sql.SQL(found_type))
    found = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(table, others)).fetchone()
    if found is None or not found[0]:
        return None
    return sql.SQL("UPDATE {} SET {} = {} WHERE {}").format(table, name, stored, others)


def fill(
    connection: Connection, relation: Relation, column: Column, found_type: str, *, only_brought: bool
) -> tuple[sql.Composed, ...]:
    """Give rows the column's known fill: all, or those alone that this transaction brought. Returns the statements that
    give it to the others, for a person: no trigger or rule of the table acts on their rows. Errors: `TargetError` for
    triggers and rules that would; psycopg's own.
    """
    tables = [table for table in find_tables(connection, [relation]) if table is not None]
    statement = filling(connection, relation, column, found_type)
    if statement is not None and (not only_brought or brings_rows(connection, relation)):
        is_replica = connection.execute("SHOW session_replication_role").fetchone() == ("replica",)
        require_none_on_filling(connection, tables, column.name, as_replica=is_replica)
        connection.execute(sql.SQL("{} AND {}").format(statement, BROUGHT) if only_brought else statement)
        statement = filling(connection, relation, column, found_type)
    if statement is None:
        return ()
    require_none_on_filling(connection, tables, column.name, as_replica=True)
    settings = exact_session(found_type, column.type_name)
    by_hand = *(sql.SQL("{}").format(sql.SQL(one)) for one in settings), statement
    if not any(table.has_guards for table in tables):
        return by_hand
    return (
        sql.SQL("SET session_replication_role = replica").format(),
        *by_hand,
        sql.SQL("RESET session_replication_role").format(),
    )


def retyping_to_fill(
    connection: Connection, relation: Relation, column: Column, found_type: str
) -> sql.Composed | None:
    """The statement that gives the column the source's type, and all rows its known fill; None where `found_type`, its
    own one, prints the fill as the source does. It has no default behind it: rows come with their values.
    """
    if found_type == column.type_name or column.fill == "NULL":
        return None
    name, fill = sql.Identifier(column.name), sql.SQL(f"{column.fill}::{column.type_name}")
    kept = sql.SQL('SELECT concat(concat({0})::{1}) = concat({0}) COLLATE "C"').format(fill, sql.SQL(found_type))
    try:
        with connection.transaction():
            found = connection.execute(kept).fetchone()
    except (psycopg.DataError, psycopg.IntegrityError):
        found = None
    if found is not None and found[0]:
        return None
    alter = sql.SQL("ALTER TABLE {0} ALTER COLUMN {1} DROP DEFAULT, ALTER COLUMN {1} TYPE {2} USING {3}")
    return alter.format(sql.Identifier(relation.schema, relation.table), name, sql.SQL(column.type_name), fill)


def own_rows(connection: Connection, relation: Relation) -> sql.Composed:
    """The table for a statement that is about its rows: tables that inherit are followed as tables of their own."""
    kind = connection.execute(
        "SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = to_regclass(format('%%I.%%I', %s::text, %s::text))",
        [relation.schema, relation.table],
    ).fetchone()
    only = "" if kind is not None and kind[0] else "ONLY "
    return sql.SQL("{}{}").format(sql.SQL(only), sql.Identifier(relation.schema, relation.table))

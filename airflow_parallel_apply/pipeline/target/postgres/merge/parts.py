"""The parts of a merge: staging tables beside the tables that they are for, and the pieces of SQL that name both.

In every statement the target's table is `t` and its staging table `s`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from psycopg import sql
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.columns import TargetColumn
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import (
    DELETE,
    INSERT,
    UPDATE,
    changed_rows,
    find_guards,
)
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import hold_applied
from airflow_parallel_apply.pipeline.target.postgres.redefine.columns_ahead import require_own_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import require_computed_alike
from airflow_parallel_apply.pipeline.target.postgres.row_text import row_text
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import operation_column, unsent_column
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One staging table and the table that it is for."""

    staged: StagedTable
    table: TargetTable


def describe_parts(
    connection: Connection, session: Session, staged: Sequence[StagedTable], relations: Sequence[Relation]
) -> tuple[Part, ...]:
    """The parts of a merge, parents before children where foreign keys say so. `relations`: one for each staged."""
    tables = hold_applied(connection, relations, pipeline=session.pipeline)
    require_own_columns(connection, session, tables)
    require_computed_alike(connection, tables)
    rank = _ranks(connection, tables)
    parts = (Part(staged=one, table=table) for one, table in zip(staged, tables, strict=True))
    return tuple(sorted(parts, key=lambda part: (rank[part.table.oid], part.staged.staging)))


def same_key(table: TargetTable) -> sql.Composed:
    """The condition that a row of the table and one of staging have one key."""
    return sql.SQL(" AND ").join(
        sql.SQL("t.{name} {operator} s.{name}").format(name=sql.Identifier(name), operator=operator)
        for name, operator in table.key_operators().items()
    )


def is_other(column: TargetColumn) -> sql.Composed:
    """The condition that the stored value of a column has another text than the staged one."""
    stored, staged = sql.Identifier("t", column.name), sql.Identifier("s", column.name)
    if column.one_image:
        return sql.SQL("{} IS DISTINCT FROM {}").format(stored, staged)
    return sql.SQL("{} <> {}").format(row_text([stored]), row_text([staged]))


def sent_value(part: Part, index: int) -> sql.Composed:
    """An updated row's value of the relation's column: as staged, or the old row's where it was not sent."""
    column = part.table.relation.columns[index]
    name = sql.Identifier(column.name)
    if not part.staged.has_unsent or column.key:
        return sql.SQL("s.{}").format(name)
    return sql.SQL("CASE WHEN substr(s.{unsent}, {place}, 1) = '1' THEN t.{name} ELSE s.{name} END").format(
        unsent=unsent_column(part.table.relation), place=index + 1, name=name
    )


def with_old_values(connection: Connection, part: Part) -> Part:
    """The part with the old rows' values where they were not sent, so that they can be compared in the end. Errors:
    psycopg's own.
    """
    if not part.staged.has_unsent:
        return part
    names = [
        (index, column.name)
        for index, column in enumerate(part.table.relation.columns)
        if not column.key and not part.table.columns[column.name].generated
    ]
    connection.execute(
        sql.SQL(
            "UPDATE {staging} AS s SET {values}, {unsent} = NULL FROM {target} AS t"
            " WHERE s.{operation} = 'U' AND s.{unsent} IS NOT NULL AND {same}"
        ).format(
            staging=sql.Identifier(SCHEMA, part.staged.staging),
            values=sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(name), sent_value(part, index)) for index, name in names
            ),
            unsent=unsent_column(part.table.relation),
            target=part.table.own_rows,
            operation=operation_column(part.table.relation),
            same=same_key(part.table),
        )
    )
    return replace(part, staged=replace(part.staged, has_unsent=False))


def may_store_otherwise(connection: Connection, part: Part, *, as_replica: bool) -> bool:
    """True if a row may be stored as another one than came. Whoever changes one that is stored already is counted (see
    `SideWrites`). Errors: psycopg's own.
    """
    return bool(find_guards(connection, part.table, (INSERT, UPDATE, DELETE), as_replica=as_replica))


def require_applied(connection: Connection, part: Part, *, as_replica: bool) -> None:
    """Compare the table with what was applied, where triggers or rules may have changed it on its way.

    Errors: `TargetError` that names them and a key; psycopg's own.
    """
    keys = part.table.relation.key_names
    found = connection.execute(
        sql.SQL(
            "SELECT {keys} FROM {staging} AS s LEFT JOIN {target} AS t ON {same}"
            " WHERE CASE WHEN s.{operation} = 'D' THEN t.tableoid IS NOT NULL AND NOT ({other_key})"
            " ELSE t.tableoid IS NULL OR {differs} END LIMIT 1"
        ).format(
            keys=sql.SQL(", ").join(sql.SQL("s.{}::text").format(sql.Identifier(name)) for name in keys),
            staging=sql.Identifier(SCHEMA, part.staged.staging),
            target=part.table.own_rows,
            same=same_key(part.table),
            operation=operation_column(part.table.relation),
            # One that has an equal key with another text was inserted.
            other_key=sql.SQL(" OR ").join(is_other(part.table.columns[name]) for name in keys),
            differs=sql.SQL(" OR ").join([sql.SQL("false"), *_differences(part)]),
        )
    ).fetchone()
    if found is not None:
        row = f": {', '.join(f'{name}={value}' for name, value in zip(keys, found, strict=True))}"
        raise changed_rows(connection, part.table, row=row, as_replica=as_replica)


def _differences(part: Part) -> Iterator[sql.Composed]:
    """A condition for each column that was sent: whether the stored value is another one."""
    operation, unsent = operation_column(part.table.relation), unsent_column(part.table.relation)
    for index, column in enumerate(part.table.relation.columns):
        found = part.table.columns[column.name]
        if found.generated:
            continue
        differs = is_other(found)
        if part.staged.has_unsent and not column.key:
            form = "({differs} AND (s.{operation} = 'I' OR substr(s.{unsent}, {place}, 1) IS DISTINCT FROM '1'))"
            differs = sql.SQL(form).format(differs=differs, operation=operation, unsent=unsent, place=index + 1)
        yield differs


def _ranks(connection: Connection, tables: Sequence[TargetTable]) -> dict[int, int]:
    """Parents before children; foreign keys in a circle leave the order as it was."""
    oids = sorted({table.oid for table in tables})
    ranks = dict.fromkeys(oids, 0)
    if len(oids) < 2:
        return ranks
    cursor = connection.cursor(row_factory=dict_row)
    keys = cursor.execute(statement("tables", "foreign_keys"), {"oids": oids}).fetchall()
    parents: dict[int, set[int]] = {oid: set() for oid in oids}
    for key in keys:
        if key["child"] in parents and key["parent"] in parents and key["child"] != key["parent"]:
            parents[key["child"]].add(key["parent"])
    try:
        return {oid: rank for rank, oid in enumerate(TopologicalSorter(parents).static_order())}
    except CycleError:
        return ranks

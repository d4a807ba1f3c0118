"""The parts of a merge: staging tables beside the tables that they are for, and the pieces of SQL that name both.

In every statement the target's table is `t` and its staging table `s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from psycopg import sql
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.epoch import StagedTable
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging import UNSENT_COLUMN
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable, describe_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One staging table and the table that it is for."""

    staged: StagedTable
    table: TargetTable


def describe_parts(
    connection: Connection, session: Session, staged: Sequence[StagedTable], relations: Sequence[Relation]
) -> tuple[Part, ...]:
    """The parts of a merge, parents before children where foreign keys say so. `relations`: one for each staged."""
    tables = describe_tables(connection, relations, schema=session.schema)
    rank = _ranks(connection, session, tables)
    parts = (Part(staged=one, table=table) for one, table in zip(staged, tables, strict=True))
    return tuple(sorted(parts, key=lambda part: (rank[part.table.oid], part.staged.staging)))


def same_key(table: TargetTable) -> sql.Composed:
    """The condition that a row of the table and one of staging have one key."""
    return sql.SQL(" AND ").join(
        sql.SQL("t.{name} {operator} s.{name}").format(name=sql.Identifier(name), operator=operator)
        for name, operator in table.key_operators().items()
    )


def sent_value(part: Part, index: int) -> sql.Composed:
    """An updated row's value of the relation's column: as staged, or the old row's where it was not sent."""
    column = part.table.relation.columns[index]
    name = sql.Identifier(column.name)
    if not part.staged.has_unsent or column.key:
        return sql.SQL("s.{}").format(name)
    return sql.SQL("CASE WHEN substr(s.{unsent}, {place}, 1) = '1' THEN t.{name} ELSE s.{name} END").format(
        unsent=UNSENT_COLUMN, place=index + 1, name=name
    )


def _ranks(connection: Connection, session: Session, tables: Sequence[TargetTable]) -> dict[int, int]:
    """Parents before children; foreign keys in a circle leave the order as it was."""
    oids = sorted({table.oid for table in tables})
    ranks = dict.fromkeys(oids, 0)
    if len(oids) < 2:
        return ranks
    cursor = connection.cursor(row_factory=dict_row)
    keys = cursor.execute(session.sql("tables", "foreign_keys"), {"oids": oids}).fetchall()
    parents: dict[int, set[int]] = {oid: set() for oid in oids}
    for key in keys:
        if key["child"] in parents and key["parent"] in parents and key["child"] != key["parent"]:
            parents[key["child"]].add(key["parent"])
    try:
        return {oid: rank for rank, oid in enumerate(TopologicalSorter(parents).static_order())}
    except CycleError:
        return ranks

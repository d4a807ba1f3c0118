"""Tables of the target that have the rows of the source's tables, and their columns, identified by what no renaming
changes: the table's oid and the column's number.

While rows under a table's former name are still to come, somebody may rename the table and give its name to another
one: to its successor, if it is archived, or to one with which it exchanges names. The same may be done to columns.
Neither names nor types show this. If a table is gone, whatever has its name now was put in its place. If a column is
gone, its values are gone, too, whatever has its name now.

A column's number is noted with the table, or once its definition is followed; it stays noted until the table is copied
anew or emptied, or until DDL that was sent drops the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.own_writes import is_ours
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import renamed_columns
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name, giving_name
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, describe_tables, lock_tables
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import RenamedTable
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_types import forget_all_types, void_types
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named, numbers, texts


def settled(definitions: Iterable[Relation], applied_seqno: int) -> tuple[Relation, ...]:
    """The last definition of each table of the log, unless something above this seqno gives another name to it, or to
    the one that had its name; with those columns alone of which nothing above it does.
    """
    found: dict[int, list[Relation]] = {}
    for one in definitions:
        if one.oid is None:
            continue
        if one.first_seqno is not None and NO_SEQNO < one.first_seqno <= applied_seqno:
            found[one.oid] = []
        found.setdefault(one.oid, []).append(one)
    names = [{one.name for one in ones} for ones in found.values()]
    passing = set[str]().union(*(some for some in names if len(some) > 1))
    return tuple(_with_settled(ones) for ones in found.values() if ones[-1].name not in passing)


def note_tables(
    connection: Connection, session: Session, relations: Iterable[Relation], *, is_certain: bool = False
) -> None:
    """Note the tables of these names, where none is noted that is there still, and their columns, where none is noted
    of that number; with `is_certain`, also where one is. Of several definitions of one table the last one counts.
    Errors: psycopg's own.
    """
    last = {relation.oid: relation for relation in relations if relation.oid is not None}
    if last:
        values = {"pipeline": session.pipeline, "is_certain": is_certain, **_values(last.values())}
        connection.execute(_sql("note"), values)


def note_replaced(connection: Connection, session: Session, relations: Sequence[Relation]) -> None:
    """Note the tables of these names, whose rows a copy has put in the place of all others. Errors: psycopg's own."""
    void_types(connection, relations, pipeline=session.pipeline)
    connection.execute(
        statement("applied_tables", "forget_others"), {"pipeline": session.pipeline, **_values(relations)}
    )
    note_tables(connection, session, relations, is_certain=True)


def note_unknown(connection: Connection, session: Session, relations: Sequence[Relation]) -> None:
    """As `note_tables`, of those tables only of which nothing is noted where they are; what is noted of columns from
    where a table is not any more is forgotten. Errors: psycopg's own.
    """
    if connection.execute(_sql("forget_moved"), {"pipeline": session.pipeline}).rowcount:
        forget_all_types(connection, session)
    known = [relation for relation in relations if relation.oid is not None]
    if known:
        found = connection.execute(_sql("unknown"), {"pipeline": session.pipeline, **_values(known)})
        note_tables(connection, session, [known[number] for (number,) in found.fetchall()])


def note_unbegun(connection: Connection, session: Session, relations: Sequence[Relation]) -> None:
    """Note that the tables of these names, and no others, have had no rows so far. Errors: psycopg's own."""
    values = named((one.schema, one.table) for one in relations)
    connection.execute(statement("applied_tables", "note_unbegun"), {"pipeline": session.pipeline, **values})


def forget_dropped(connection: Connection, session: Session) -> None:
    """Forget the columns that this transaction has dropped. Errors: psycopg's own."""
    ours = is_ours(sql.Identifier("a", "xmin"))
    query = statement("applied_tables", "forget_dropped", is_ours=ours)
    connection.execute(query, {"pipeline": session.pipeline})


def present_name(connection: Connection, session: Session, relation: Relation) -> Name | None:
    """The name by now of the table that has a definition's rows; None where that is not known."""
    names = {"pipeline": session.pipeline, "source_oid": relation.oid}
    # `check` asks before a run has made the pipeline's tables.
    with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege), connection.transaction():
        found = connection.execute(statement("applied_tables", "named"), names).fetchone()
        return None if found is None else (found[0], found[1])
    return None


def is_anothers(connection: Connection, session: Session, relation: Relation) -> bool:
    """True if the table of this name is known to have rows of another table of the source. Errors: psycopg's own."""
    names = {"source_oid": relation.oid, "schema": relation.schema, "table": relation.table}
    query = statement("applied_tables", "is_anothers")
    return connection.execute(query, {"pipeline": session.pipeline, **names}).fetchone() == (True,)


def present_columns(connection: Connection, session: Session, relation: Relation) -> Mapping[int, str | None]:
    """The names by now of the columns of a definition's table, by the source's numbers; None of one that is gone. Those
    that are known. Errors: psycopg's own.
    """
    names = {"source_oid": relation.oid, "schema": relation.schema, "table": relation.table}
    query = statement("applied_tables", "present")
    return dict(connection.execute(query, {"pipeline": session.pipeline, **names}).fetchall())


def describe_applied(
    connection: psycopg.Connection[Any], relations: Sequence[Relation], *, pipeline: str, are_emptied: bool = False
) -> tuple[TargetTable, ...]:
    """As `describe_tables`, of tables that had the rows of these definitions so far, or have those as their partitions,
    and, unless they `are_emptied`, the values of their columns. Errors: `RenamedTable`, `RenamedColumns`, too.
    """
    known = [relation for relation in relations if relation.oid is not None]
    query = statement("applied_tables", "differing")
    wanted = _values(known if not are_emptied else [replace(one, columns=()) for one in known])
    differing = connection.execute(query, {"pipeline": pipeline, **wanted}).fetchall() if known else []
    columns: dict[int, dict[str, str | None]] = {}
    for number, *name, column, found in differing:
        if column is None:
            relation, other = known[number], (name[0], name[1])
            raise RenamedTable(relation, other, giving_name(connection, other, (relation.schema, relation.table)))
        columns.setdefault(known[number].relation_id, {})[column] = found
    for relation in known:
        pairs = columns.get(relation.relation_id, {}).items()
        renamed = {found: column for column, found in pairs if found is not None}
        if renamed:
            raise renamed_columns(connection, relation, renamed, pipeline=pipeline)
    return tuple(
        replace(table, lost_columns=tuple(columns.get(table.relation.relation_id, ())))
        for table in describe_tables(connection, relations)
    )


def hold_applied(
    connection: psycopg.Connection[Any], relations: Sequence[Relation], *, pipeline: str, are_emptied: bool = False
) -> tuple[TargetTable, ...]:
    """As `describe_applied`, of tables that stay so (see `hold_tables`) and get rows of these definitions."""
    lock_tables(connection, relations)
    if not are_emptied:
        void_types(connection, relations, pipeline=pipeline)
    return describe_applied(connection, relations, pipeline=pipeline, are_emptied=are_emptied)


def _with_settled(definitions: Sequence[Relation]) -> Relation:
    if len(definitions) == 1:
        return definitions[0]
    columns = [{(column.number, column.name) for column in one.columns} for one in definitions]
    same = set.intersection(*columns)
    last = definitions[-1]
    return replace(last, columns=tuple(column for column in last.columns if (column.number, column.name) in same))


def _sql(name: str) -> sql.Composed:
    here = statement("applied_tables", "here")
    return statement("applied_tables", name, here=here)


def _values(relations: Iterable[Relation]) -> dict[str, str]:
    known = [(relation.oid, relation) for relation in relations if relation.oid is not None]
    columns = [
        (place, column.number, column.name)
        for place, (_, relation) in enumerate(known, start=1)
        for column in relation.columns
        if column.number is not None
    ]
    return {
        "source_oids": numbers(oid for oid, _ in known),
        **named((relation.schema, relation.table) for _, relation in known),
        "column_tables": numbers(place for place, _, _ in columns),
        "numbers": numbers(number for _, number, _ in columns),
        "columns": texts(name for *_, name in columns),
    }

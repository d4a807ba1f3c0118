"""Tables of the target that have the rows of the source's, known by their oids, which no renaming changes.

Somebody may give a table another name, and its own to a table beside it, while rows of the former name are still to
come: its successor, where it is archived, or one with which it exchanges names. The names and the columns do not tell.
A table that is gone tells nothing either: what has its name then was put in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.postgres.table_names import Name, giving_name
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable, describe_tables, lock_tables
from airflow_parallel_apply.pipeline.target.postgres.unfit import RenamedTable


def settled_names(definitions: Iterable[Relation], applied_seqno: int) -> tuple[Relation, ...]:
    """The last definition of each table of the log, unless something above this seqno gives it another name."""
    found: dict[int, list[Relation]] = {}
    for one in definitions:
        if one.oid is None:
            continue
        if one.first_seqno is not None and NO_SEQNO < one.first_seqno <= applied_seqno:
            found[one.oid] = []
        found.setdefault(one.oid, []).append(one)
    return tuple(ones[-1] for ones in found.values() if len({one.name for one in ones}) == 1)


def note_tables(
    connection: Connection, session: Session, relations: Iterable[Relation], *, is_certain: bool = False
) -> None:
    """Note the tables of these names, where none is noted that is there still; with `is_certain`, also where one is.
    Errors: psycopg's own.
    """
    values = _values(relations)
    if values["source_oids"]:
        names = {"pipeline": session.pipeline, "is_certain": is_certain, **values}
        connection.execute(session.sql("applied_tables", "note"), names)


def present_name(connection: Connection, session: Session, relation: Relation) -> Name | None:
    """The name by now of the table that has a definition's rows; None where that is not known."""
    names = {"pipeline": session.pipeline, "source_oid": relation.oid}
    # `check` asks before a run has made the pipeline's tables.
    with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege), connection.transaction():
        found = connection.execute(session.sql("applied_tables", "named"), names).fetchone()
        return None if found is None else (found[0], found[1])
    return None


def describe_applied(
    connection: psycopg.Connection[Any], relations: Sequence[Relation], *, schema: str, pipeline: str
) -> tuple[TargetTable, ...]:
    """As `describe_tables`, of tables that had the rows of these definitions so far, or have those as their partitions.
    Errors: `RenamedTable`, too.
    """
    values = _values(relations)
    query = statement("applied_tables", "named_otherwise", schema=schema)
    renamed = connection.execute(query, {"pipeline": pipeline, **values}) if values["source_oids"] else ()
    for source_oid, *found in renamed:
        relation, name = next(one for one in relations if one.oid == source_oid), (found[0], found[1])
        raise RenamedTable(relation, name, giving_name(connection, name, (relation.schema, relation.table)))
    return describe_tables(connection, relations, schema=schema)


def hold_applied(
    connection: psycopg.Connection[Any], relations: Sequence[Relation], *, schema: str, pipeline: str
) -> tuple[TargetTable, ...]:
    """As `describe_applied`, of tables that stay so: see `hold_tables`."""
    lock_tables(connection, relations, schema=schema)
    return describe_applied(connection, relations, schema=schema, pipeline=pipeline)


def _values(relations: Iterable[Relation]) -> dict[str, list[Any]]:
    known = [relation for relation in relations if relation.oid is not None]
    return {
        "source_oids": [relation.oid for relation in known],
        "schemas": [relation.schema for relation in known],
        "tables": [relation.table for relation in known],
    }

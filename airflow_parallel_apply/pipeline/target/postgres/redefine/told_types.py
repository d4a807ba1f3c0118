"""Columns to which DDL messages have given other types, with those that they had, until the log tells of the new ones.

Where a column had the source's type, such a message cast its older values as the source did. One that had a type of its
own may look the same behind the message, and nothing has cast its values. Nor those of a row that comes behind the
message under the former type, be it with a copy: it voids the note.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named, texts

_MAY_RETYPE: Final = re.compile("type", re.IGNORECASE)


@contextmanager
def noting_types(connection: Connection, session: Session, text: str, names: Collection[Name]) -> Iterator[None]:
    """Around DDL that was sent, in its transaction: note which columns of tables of these names, and of those that have
    rows, it gives another type. Errors: psycopg's own.
    """
    if not _MAY_RETYPE.search(text):
        yield
        return
    before = _types(connection, session, names)
    yield
    after = _types(connection, session, names)
    for (oid, number), type_name in before.items():
        if after.get((oid, number), type_name) != type_name:
            values = {"pipeline": session.pipeline, "oid": oid, "number": number, "type_name": type_name}
            connection.execute(statement("told_types", "note"), values)


def told_types(connection: Connection, session: Session, relation: Relation) -> Set[tuple[str, str]]:
    """The columns of a definition's table, by their names here, with the types that they had. Errors: psycopg's own."""
    values = {"pipeline": session.pipeline, "schema": relation.schema, "table": relation.table}
    return frozenset(connection.execute(statement("told_types", "told"), values).fetchall())


def void_types(connection: psycopg.Connection[Any], relations: Sequence[Relation], *, pipeline: str) -> None:
    """Forget what is noted of columns that get values under the types that they had. Errors: psycopg's own."""
    if connection.execute(statement("told_types", "any"), {"pipeline": pipeline}).fetchone() == (True,):
        connection.execute(statement("told_types", "forget"), _columns(pipeline, relations, are_followed=False))


def forget_types(connection: Connection, session: Session, relation: Relation) -> None:
    """Forget what is noted of columns that have this definition's types. Errors: psycopg's own."""
    with without_search_path(connection):
        columns = _columns(session.pipeline, [relation], are_followed=True)
        connection.execute(statement("told_types", "forget"), columns)


def forget_all_types(connection: Connection, session: Session) -> None:
    """Forget what is noted of any table: it may have another number here. Errors: psycopg's own."""
    connection.execute(statement("told_types", "forget_all"), {"pipeline": session.pipeline})


def _columns(pipeline: str, relations: Sequence[Relation], *, are_followed: bool) -> dict[str, object]:
    columns = [(relation, column) for relation in relations for column in relation.columns]
    return {
        "pipeline": pipeline,
        "are_followed": are_followed,
        **named((relation.schema, relation.table) for relation, _ in columns),
        "names": texts(column.name for _, column in columns),
        "types": texts(column.type_name for _, column in columns),
    }


def _types(connection: Connection, session: Session, names: Collection[Name]) -> dict[tuple[int, int], str]:
    with without_search_path(connection):
        found = connection.execute(statement("told_types", "types"), {"pipeline": session.pipeline, **named(names)})
        return {(oid, number): type_name for oid, number, type_name in found.fetchall()}

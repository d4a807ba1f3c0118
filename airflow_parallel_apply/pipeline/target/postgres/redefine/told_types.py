"""Columns to which DDL messages have given other types, with those that they had, until the log tells of the new ones.

Where a column had the source's type, such a message cast its older values as the source did. One that had a type of its
own may look the same behind the message, and nothing has cast its values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Final

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_MAY_RETYPE: Final = re.compile("type", re.IGNORECASE)


@contextmanager
def noting_types(connection: Connection, session: Session, text: str) -> Iterator[None]:
    """Around DDL that was sent, in its transaction: note which columns it gives another type. Errors: psycopg's own."""
    if not _MAY_RETYPE.search(text):
        yield
        return
    before = _types(connection, session)
    yield
    after = _types(connection, session)
    for (oid, number), type_name in before.items():
        if after.get((oid, number), type_name) != type_name:
            values = {"pipeline": session.pipeline, "oid": oid, "number": number, "type_name": type_name}
            connection.execute(statement("told_types", "note"), values)


def told_types(connection: Connection, session: Session, relation: Relation) -> Set[tuple[str, str]]:
    """The columns of a definition's table, by their names here, with the types that they had. Errors: psycopg's own."""
    values = {"pipeline": session.pipeline, "schema": relation.schema, "table": relation.table}
    return frozenset(connection.execute(statement("told_types", "told"), values).fetchall())


def _types(connection: Connection, session: Session) -> dict[tuple[int, int], str]:
    with without_search_path(connection):
        found = connection.execute(statement("told_types", "types"), {"pipeline": session.pipeline})
        return {(oid, number): type_name for oid, number, type_name in found.fetchall()}

"""Tables that DDL messages renamed, identified by their oids, until the log has their new names.

Where a table is archived (renamed, and another one made under its name), both names exist after the messages, as they
would if nothing had been done and an unrelated table had the new name. If two tables exchange their names, both always
exist. The columns need not show the difference; the oid does, because no renaming changes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named

Name = tuple[str, str]


@contextmanager
def noting_renames(connection: Connection, session: Session, names: Collection[Name]) -> Iterator[None]:
    """Around DDL that was sent, in its transaction: note which tables of these names it renames. Errors: psycopg's
    own.
    """
    before = {oid: name for oid, *name in _run(connection, session, "named", names)}
    yield
    after = {oid: name for oid, *name in _run(connection, session, "names_of", oids=list(before))}
    for oid, (schema, table) in before.items():
        if after.get(oid, [schema, table]) != [schema, table]:
            _run(connection, session, "note", oid=oid, schema_name=schema, table_name=table)


def was_told(connection: Connection, session: Session, pairs: Sequence[tuple[Name, Name]]) -> bool:
    """True if messages have renamed tables as these pairs do, from former names to new ones: as far as any is noted
    for a former name. What is noted of them is forgotten. Errors: psycopg's own.
    """
    noted: dict[Name, dict[Name, int]] = {}
    for oid, former_schema, former, schema, table in _run(connection, session, "noted", [old for old, _ in pairs]):
        noted.setdefault((former_schema, former), {})[schema, table] = oid
    oids = [noted[old].get(new) for old, new in pairs if old in noted]
    if not oids or None in oids:
        return False
    _run(connection, session, "forget", oids=oids)
    return True


def _run(
    connection: Connection, session: Session, name: str, names: Collection[Name] = (), **values: object
) -> list[Any]:
    cursor = connection.execute(
        statement("told_renames", name), {"pipeline": session.pipeline, **named(names), **values}
    )
    return cursor.fetchall() if cursor.description else []

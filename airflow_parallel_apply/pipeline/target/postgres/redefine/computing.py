"""Computed columns of the target: those that the source computes since a newer definition, otherwise, or no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import is_plain_cast
from airflow_parallel_apply.pipeline.target.postgres.catalog.generated_text import as_taken, type_of
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import Alteration, altering
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import Computed, computed_otherwise
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns, FoundColumn
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session

_RECOMPUTED: Final = "is computed otherwise"


def computations(
    connection: Connection, session: Session, old: Relation, new: Relation, columns: Columns
) -> Iterator[Alteration]:
    """Yield the alterations by which the target computes as the newer definition does. Errors: psycopg's own."""
    for name, definition in new.newly_computed(old):
        if name not in columns:
            taken = sql.SQL(as_taken(definition, connection.info.server_version))
            add = sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), taken)
            yield Alteration(name, "was added as a computed one", (altering(new) + add,))
    for name, _ in new.recomputed(old):
        if name in columns and not columns[name].generated:
            # What it holds in older rows is for a copy to tell.
            yield Alteration(name, _RECOMPUTED, (), is_certain=False)
    tables = [table for table in find_tables(connection, [new], schema=session.schema) if table is not None]
    for column in {one.name: one for one in computed_otherwise(connection, tables, schema=session.schema)}.values():
        yield _retyping(connection, column, old, new) or _recomputing(connection, column)


def uncomputing(relation: Relation, column: Column, found: FoundColumn) -> Alteration:
    """Turn a generated column into a plain one: what the target has computed of a stored column stays; a virtual one
    has nothing that could.
    """
    drop = sql.SQL("ALTER COLUMN {} DROP EXPRESSION").format(sql.Identifier(column.name))
    is_stored = found.generated == "s"
    return Alteration(
        column.name,
        "is not computed any more",
        (altering(relation, found) + drop,) if is_stored else (),
        is_certain=is_stored,
        owner=found.owner,
    )


def _retyping(connection: Connection, column: Computed, old: Relation, new: Relation) -> Alteration | None:
    """The alteration of a column whose type alone is another one: the server casts what was computed, and computes
    nothing anew. None where it was made again, or nothing tells that it was not.
    """
    former, number = dict(old.expressions).get(column.name), new.number_of(column.name)
    if former is None or number is None or old.number_of(column.name) != number:
        return None
    statement = column.retyping(connection, former)
    if statement is None:
        return None
    type_name = type_of(column.definition)
    is_by_hand = not is_plain_cast(column.type_name, type_name)
    return Alteration(column.name, f"became {type_name}", (sql.Composed([sql.SQL(statement)]),), is_by_hand=is_by_hand)


def _recomputing(connection: Connection, column: Computed) -> Alteration:
    statement = sql.Composed([sql.SQL(column.fix(connection))])
    is_certain = column.is_fixed_in_place(connection)
    return Alteration(column.name, _RECOMPUTED, (statement,), is_certain=is_certain)

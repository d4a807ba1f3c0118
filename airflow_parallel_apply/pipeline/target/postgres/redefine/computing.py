"""Computed columns of the target: those that the source computes since a newer definition, otherwise, or no more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import retyping_for
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, find_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import Alteration, altering
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import Computed, computed_otherwise
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns, FoundColumn, find_columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.postgres.generated_text import as_taken, is_virtual, type_of

_RECOMPUTED: Final = "is computed otherwise"
_OF_OTHER_TYPES: Final = "The target would compute it of columns that have other types there than at the source. "


def computations(connection: Connection, old: Relation, new: Relation, columns: Columns) -> Iterator[Alteration]:
    """Yield the alterations by which the target computes as the newer definition does. Errors: psycopg's own."""
    (before,) = find_tables(connection, [new])
    for name, definition in (*new.newly_computed(old), *new.remade(old)):
        if name not in columns:
            taken = sql.SQL(as_taken(definition, connection.info.server_version))
            add = sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), taken)
            yield Alteration(
                name, "was added as a computed one", (altering(new) + add,), unlike=_types(before, definition)
            )
    for name, _ in new.recomputed(old):
        if name in columns and not columns[name].generated:
            # What it holds in older rows is for a copy to tell.
            yield Alteration(name, _RECOMPUTED, (), is_certain=False)
    tables = [table for table in find_tables(connection, [new]) if table is not None]
    there = find_columns(connection, new)
    for column in {one.name: one for one in computed_otherwise(connection, tables)}.values():
        if column.name not in columns:
            # It was added just now, of columns that have types of their own here, which are for a person to change.
            statement = sql.Composed([sql.SQL(column.fix(connection))])
            yield Alteration(column.name, "was added as a computed one", (statement,), first=_OF_OTHER_TYPES)
            continue
        alteration = _retyping(connection, column, there[column.name]) or _recomputing(connection, column)
        # A column has the type that it has where it comes from.
        is_retyped = column.type_name != type_of(column.definition)
        yield replace(alteration, owner=there[column.name].owner) if is_retyped else alteration


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


def _retyping(connection: Connection, column: Computed, found: FoundColumn) -> Alteration | None:
    """The alteration of a column that has another type alone, under which its values are what they were."""
    if not column.is_cast_in_place(connection):
        return None
    type_name = type_of(column.definition)
    retype = sql.SQL("ALTER COLUMN {} TYPE {}").format(sql.Identifier(column.name), sql.SQL(type_name))
    return Alteration(column.name, f"became {type_name}", (altering(column.relation, found) + retype,))


def _recomputing(connection: Connection, column: Computed) -> Alteration:
    """The alteration of any other column. The source casts values to another type as it finds them, and the log does
    not tell which of them it has computed since, nor which rows were written before.
    """
    statement = sql.Composed([sql.SQL(column.fix(connection))])
    if column.is_fixed_in_place(connection):
        unlike = _types(column.table, column.definition)
        return Alteration(column.name, _RECOMPUTED, (statement,), unlike=unlike)
    # No value of a virtual one was ever cast.
    is_certain = not column.unlike and (is_virtual(column.definition) or bool(column.first))
    return Alteration(column.name, _RECOMPUTED, (statement,), is_certain=is_certain, first=column.first)


def _types(table: TargetTable | None, definition: str) -> tuple[sql.Composed, ...]:
    """The source's types for the columns that a definition reads."""
    texts = () if table is None else retyping_for(table, definition)
    return tuple(sql.Composed([sql.SQL(text)]) for text in texts)

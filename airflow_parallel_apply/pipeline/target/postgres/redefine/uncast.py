"""Older rows of a column that got another type at the source, where the column here had a type of its own: nothing has
cast their values, and a cast may print another text than the value of before (`char(5)` loses its blanks, `real` shows
more digits as `double precision`, `boolean` becomes `true`). What has been cast prints the same if it is cast again,
and what a `USING` has made is seldom a text of the former type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.exact_session import exact_session
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import Alteration, left
from airflow_parallel_apply.pipeline.target.postgres.redefine.fills import own_rows
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange, compare_definitions
from airflow_parallel_apply.pipeline.target.skipping import SKIPPING

_UNLESS_CAST: Final = (
    "Some older values are still as the former type prints them. Where the source's are so, too (a USING made them, "
    f"and you ran the same here), leave them, and {SKIPPING}. Else:"
)


def retyped(old: Relation, new: Relation) -> tuple[ColumnChange, ...]:
    """The changes of a column's type."""
    changes = compare_definitions(old, new).changes
    return tuple(one for one in changes if one.old and one.new and one.old.type_name != one.new.type_name)


def retyped_elsewhere(
    changes: Iterable[ColumnChange], columns: Columns, before: Columns | None
) -> tuple[ColumnChange, ...]:
    """The changes of a type that the target's column did not have. `columns`: those of before the changes. `before`:
    those of before the last statement that was sent, which may have made them; None where there was none.
    """
    known = [one for one in (columns, before) if one is not None]
    return tuple(change for change in changes if all(_is_retyped_elsewhere(change, one) for one in known))


def require_cast(connection: Connection, relation: Relation, changes: Iterable[ColumnChange], columns: Columns) -> None:
    """`columns`: those of now. Errors: `PlanError` for a column with values that a cast would print otherwise; the
    driver's own.
    """
    for change in changes:
        old, new = change.old, change.new
        if old is None or new is None or new.name not in columns:
            continue
        here, name = columns[new.name].type_name, sql.Identifier(new.name)
        former = sql.SQL("concat({})::{}").format(name, sql.SQL(old.type_name))
        cast = sql.SQL("concat({}::{})").format(former, sql.SQL(new.type_name))
        other = sql.SQL(
            '{0} IS NOT NULL AND {1} <> concat({0}) COLLATE "C" AND concat({2}) = concat({0}) COLLATE "C"'
        ).format(name, cast, former)
        rows = own_rows(connection, relation)
        try:
            with connection.transaction():
                found = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(rows, other))
                is_left = found.fetchone() == (True,)
        except (psycopg.DataError, psycopg.ProgrammingError):
            # Values that are none of the former type were made here, and types that are gone tell nothing.
            continue
        if is_left:
            update = sql.SQL("UPDATE {} SET {} = {}::{} WHERE {}").format(rows, name, cast, sql.SQL(here), other)
            settings = (sql.Composed([sql.SQL(one)]) for one in exact_session(here, old.type_name, new.type_name))
            what = f"became {new.type_name}"
            raise left(connection, relation, Alteration(new.name, what, (*settings, update), first=_UNLESS_CAST))


def _is_retyped_elsewhere(change: ColumnChange, columns: Columns) -> bool:
    old, new = change.old, change.new
    if old is None or new is None or old.type_name == new.type_name:
        return False
    here = columns.get(old.name) or columns.get(new.name)
    return here is not None and not here.generated and here.type_name != old.type_name

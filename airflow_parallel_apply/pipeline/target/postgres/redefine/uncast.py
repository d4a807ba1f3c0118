"""Older rows of a column that got another type at the source, where nothing shows that they were cast here: the column
had a type of its own, or a person gave it the new one. A cast may print another text than the value of before
(`char(5)` loses its blanks, `real` shows more digits as `double precision`, `boolean` becomes `true`). What has been
cast prints the same if it is cast again, and what a `USING` has made is seldom a text of the former type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind
from airflow_parallel_apply.pipeline.target.postgres.catalog.exact_session import exact_session
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import is_plain_cast
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import Alteration, left
from airflow_parallel_apply.pipeline.target.postgres.redefine.fills import own_rows
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange, compare_definitions

_UNCAST: Final = "Nothing shows that the target's older values were cast as the source's were."
_OF_NO_SETTING: Final = (ValueKind.BOOLEAN, ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.TEXT)
"""Values that each session prints and casts alike, of domains and enums, too."""


def retyped(old: Relation, new: Relation) -> tuple[ColumnChange, ...]:
    """The changes of a column's type."""
    changes = compare_definitions(old, new).changes
    return tuple(one for one in changes if one.old and one.new and one.old.type_name != one.new.type_name)


def retyped_elsewhere(
    changes: Iterable[ColumnChange], columns: Columns, present: Mapping[int, str | None], told: Set[tuple[str, str]]
) -> tuple[ColumnChange, ...]:
    """The changes of a type that the target's column did not have. `columns`: those of before the changes. `present`:
    see `present_columns`. `told`: see `told_types`.
    """
    return tuple(change for change in changes if _is_retyped_elsewhere(change, columns, present, told))


def require_cast(connection: Connection, relation: Relation, changes: Iterable[ColumnChange], columns: Columns) -> None:
    """`columns`: those of now. Errors: `PlanError` for a column with values that a cast may print otherwise; the
    driver's own.
    """
    for change in changes:
        old, new = change.old, change.new
        if old is None or new is None or new.name not in columns:
            continue
        rows, has_value = own_rows(connection, relation), sql.SQL("{} IS NOT NULL").format(sql.Identifier(new.name))
        if _any(connection, rows, has_value) and _may_be_uncast(connection, rows, old, new):
            what = f"became {new.type_name}"
            raise left(connection, relation, Alteration(new.name, what, (), is_certain=False, first=_UNCAST))


def _may_be_uncast(connection: Connection, rows: sql.Composable, old: Column, new: Column) -> bool:
    if not (is_plain_cast(old.type_name, new.type_name) or (_has_no_setting(old) and _has_no_setting(new))):
        return True
    name = sql.Identifier(new.name)
    former = sql.SQL("concat({})::{}").format(name, sql.SQL(old.type_name))
    cast = sql.SQL("concat({}::{})").format(former, sql.SQL(new.type_name))
    other = sql.SQL('{1} <> concat({0}) COLLATE "C" AND concat({2}) = concat({0}) COLLATE "C"')
    try:
        with connection.transaction():
            return _any(connection, rows, other.format(name, cast, former))
    except (psycopg.DataError, psycopg.ProgrammingError):
        # The type is gone, or some values are none of it.
        keeps_texts = old.value.kind in (ValueKind.TEXT, ValueKind.INTEGER) and old.kind is not KeyKind.BLANK_PADDED
        return not keeps_texts


def _has_no_setting(column: Column) -> bool:
    return column.value.kind in _OF_NO_SETTING or not exact_session(column.type_name)


def _any(connection: Connection, rows: sql.Composable, condition: sql.Composable) -> bool:
    found = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(rows, condition))
    return found.fetchone() == (True,)


def _is_retyped_elsewhere(
    change: ColumnChange, columns: Columns, present: Mapping[int, str | None], told: Set[tuple[str, str]]
) -> bool:
    old, new = change.old, change.new
    if old is None or new is None or old.type_name == new.type_name:
        return False
    name = present.get(old.number or 0) or (old.name if old.name in columns else new.name)
    here = columns.get(name)
    if here is None or here.generated or here.type_name == old.type_name:
        return False
    is_told = (name, old.type_name) in told and here.type_name == new.type_name
    return not is_told

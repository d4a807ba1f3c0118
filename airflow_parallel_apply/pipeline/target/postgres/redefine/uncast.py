"""Older rows of a column that got another type at the source, where nothing shows that they were cast here: the column
had a type of its own, or a person gave it the new one. A cast may print another text than the value of before
(`char(5)` loses its blanks, `real` shows more digits as `double precision`, `boolean` becomes `true`). What has been
cast prints the same if it is cast again, and what a `USING` has made is seldom a text of the former type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.kept_texts import keeps_texts
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind
from airflow_parallel_apply.pipeline.target.postgres.catalog.exact_session import exact_session
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import (
    Fit,
    differ_in_limits,
    fit,
    is_cast_by_text,
    is_plain_cast,
    name_of_built_in,
)
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import Alteration, left
from airflow_parallel_apply.pipeline.target.postgres.redefine.fills import BROUGHT, own_rows
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns, find_columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange, compare_definitions

_UNCAST: Final = "Nothing shows that the target's older values were cast as the source's were. "
_OF_NO_SETTING: Final = (ValueKind.BOOLEAN, ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.TEXT)
"""Values that each session prints and casts alike, of domains and enums, too."""
_TEXTS: Final = ("text", "character varying")
_AS_THEY_ARE: Final = (Fit.EXACT, Fit.UNKNOWN)
"""Types of the target's that print the texts which come. Of types that somebody made nothing tells it before."""


def retyped(old: Relation, new: Relation) -> tuple[ColumnChange, ...]:
    """The changes of a column's type."""
    changes = compare_definitions(old, new).changes
    return tuple(one for one in changes if one.old and one.new and one.old.type_name != one.new.type_name)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A change of a type that the target's column did not have. `others`: those that it had here, where a message has
    given it the source's.
    """

    change: ColumnChange
    others: tuple[str, ...]


def retyped_elsewhere(
    changes: Iterable[ColumnChange], columns: Columns, present: Mapping[int, str | None], told: Set[tuple[str, str]]
) -> tuple[Elsewhere, ...]:
    """`columns`: those of before the changes. `present`: see `present_columns`. `told`: see `told_types`."""
    found = (_retyped_elsewhere(change, columns, present, told) for change in changes)
    return tuple(one for one in found if one is not None)


def takes_older(connection: Connection, older: Relation, newer: Relation) -> bool:
    """True where rows of an older definition are written by the names of their columns, under types that print their
    texts as they are, and `follow` gives them the others' values. Errors: psycopg's own.
    """
    found = compare_definitions(older, newer)
    names = [(one.old.name, one.new and one.new.name) for one in found.changes if one.old is not None]
    is_known = not (found.uncertain or found.unclear or found.uncomputed)
    if older.name != newer.name or not is_known or any(before != after for before, after in names):
        return False
    here = find_columns(connection, newer)
    types = {column.name: column.type_name for column in older.columns}
    return all(fit(types[name], here[name].type_name) in _AS_THEY_ARE for name, _ in names if name in here)


def require_cast(
    connection: Connection,
    relation: Relation,
    changes: Iterable[Elsewhere],
    columns: Columns,
    *,
    only_brought: bool = False,
) -> None:
    """`columns`: those of now. `only_brought`: of the rows that this transaction has brought, which nobody else can
    reach. Errors: `PlanError` for a column with values that a cast may print otherwise; the driver's own.
    """
    for found in changes:
        old, new = found.change.old, found.change.new
        if old is None or new is None or new.name not in columns:
            continue
        rows = _Rows(own_rows(connection, relation), BROUGHT if only_brought else sql.SQL("true"))
        has_value = sql.SQL("{} IS NOT NULL").format(sql.Identifier(new.name))
        is_cast = all(_is_cast_alike(old, one, new) for one in found.others)
        if rows.have(connection, has_value) and (not is_cast or _may_be_uncast(connection, rows, old, new)):
            what = f"became {new.type_name}"
            if only_brought:
                what += " in a transaction that wrote rows before that"
            raise left(connection, relation, Alteration(new.name, what, (), is_certain=False, first=_UNCAST))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Those of a table of which a condition is true."""

    table: sql.Composable
    are_among: sql.Composable

    def have(self, connection: Connection, condition: sql.Composable) -> bool:
        """True if one meets the condition, which is asked of no other row. Errors: the driver's own."""
        query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE CASE WHEN {} THEN {} END)")
        found = connection.execute(query.format(self.table, self.are_among, condition))
        return found.fetchone() == (True,)


def _may_be_uncast(connection: Connection, rows: _Rows, old: Column, new: Column) -> bool:
    if not (is_plain_cast(old.type_name, new.type_name) or (_has_no_setting(old) and _has_no_setting(new))):
        return True
    name = sql.Identifier(new.name)
    former = sql.SQL("concat({})::{}").format(name, sql.SQL(old.type_name))
    cast = sql.SQL("concat({}::{})").format(former, sql.SQL(new.type_name))
    other = sql.SQL('{1} <> concat({0}) COLLATE "C" AND concat({2}) = concat({0}) COLLATE "C"')
    try:
        with connection.transaction():
            return rows.have(connection, other.format(name, cast, former))
    except (psycopg.DataError, psycopg.ProgrammingError):
        # The type is gone, or some values are none of it.
        keeps_texts = old.value.kind in (ValueKind.TEXT, ValueKind.INTEGER) and old.kind is not KeyKind.BLANK_PADDED
        return not keeps_texts


def _has_no_setting(column: Column) -> bool:
    return column.value.kind in _OF_NO_SETTING or not exact_session(column.type_name)


def _retyped_elsewhere(
    change: ColumnChange, columns: Columns, present: Mapping[int, str | None], told: Set[tuple[str, str]]
) -> Elsewhere | None:
    old, new = change.old, change.new
    if old is None or new is None or old.has_type_of(new):
        return None
    name = present.get(old.number or 0) or (old.name if old.name in columns else new.name)
    here = columns.get(name)
    if here is None or here.generated or here.type_name == old.type_name:
        return None
    others = tuple(type_name for column, type_name in told if column == name and here.type_name == new.type_name)
    return None if old.type_name in others else Elsewhere(change, others)


def _is_cast_alike(old: Column, other: str, new: Column) -> bool:
    """True if a value of the source's type is cast to the new one as its text, under another type, is. What is a text
    itself shows by its values whether it is.
    """
    if other in _TEXTS or differ_in_limits(old.type_name, other):
        return True
    is_text = name_of_built_in(new.type_name) in _TEXTS
    if old.value.kind is ValueKind.INTEGER and _is_number(other):
        # Whole numbers, of which no cast to a number takes anything away.
        return is_text or _is_number(new.type_name)
    return all(
        is_cast_by_text(one, new.type_name) or (is_text and _is_number(one)) or keeps_texts(one, new.type_name)
        for one in (old.type_name, other)
    )


def _is_number(type_name: str) -> bool:
    return is_plain_cast("integer", type_name)

"""Finds what became of a table's columns between two versions of its definition.

A column is known by its number at the source, which no renaming changes and no new column takes over. Logs of older
versions lack numbers; these grow in the order of the columns, so one is often fixed by its neighbours. Otherwise a new
name in place of an old one may be a renaming or another column; this is not guessed. The same holds for a column that
the source's catalog could no longer identify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_parallel_apply.pipeline.model.change import Column, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """`old` None: added. `new` None: dropped. Else renamed, of another type, or both."""

    old: Column | None
    new: Column | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redefinition:
    """The changes, and those columns, old and new, of which it is not known whether they are the same. `unclear`: new
    ones that may be others than their names say. `uncomputed`: new ones that the source computed before.
    """

    changes: tuple[ColumnChange, ...]
    uncertain: tuple[Column, ...] = ()
    unclear: tuple[Column, ...] = ()
    uncomputed: tuple[Column, ...] = ()


def compare_definitions(old: Relation, new: Relation) -> Redefinition:
    """Changes in the order in which they can be made: dropped, renamed or retyped, added."""
    unclear = tuple(column for column in new.columns if column.is_unclear)
    before, after = _numbered(old.columns), _numbered(new.columns)
    pairs: list[tuple[Column, Column]] = []
    for column in after:
        same = [one for one in before if _is_same(one, column)]
        if same:
            pairs.append((same[0], column))
            before.remove(same[0])
    taken = [column for _, column in pairs]
    # A column that is still computed is no new one, though it is sent from now on: as those of all tables are, once a
    # table of the selection needs it.
    still_computed = {column.name for column in after if column.generated} & {*(old.computed or ())}
    added = [column for column in after if column not in taken and column.name not in still_computed]
    if before and added and any(column.number is None for column in (*before, *added)):
        return Redefinition(changes=(), uncertain=(*before, *added), unclear=unclear)
    return Redefinition(
        changes=(
            *(ColumnChange(old=column, new=None) for column in before),
            *(
                ColumnChange(old=one, new=other)
                for one, other in pairs
                if (one.name, one.type_name) != (other.name, other.type_name)
            ),
            *(ColumnChange(old=None, new=column) for column in added),
        ),
        unclear=unclear,
        uncomputed=(
            *(column for column in added if old.computes(column)),
            *(column for one, column in pairs if one.generated and column.generated is False),
        ),
    )


def dropped_computed(old: Relation, new: Relation) -> tuple[str, ...]:
    """Names of columns that an older definition computes and a newer one does not have at all, as far as both say, or
    has as those of other columns. A capture that comes after the column is gone knows the column by its expression
    alone, from definitions of before.
    """
    before = (*(old.computed or ()), *(name for name, _ in old.expressions))
    others = {one.name for one in new.columns if not one.generated and not old.computes(one)} & {*(old.computed or ())}
    there = {one.name for one in new.columns}.union(new.computed or (), (name for name, _ in new.expressions)) - others
    return tuple(dict.fromkeys(name for name in before if new.computed is not None and name not in there))


def _is_same(old: Column, new: Column) -> bool:
    if old.number is not None and new.number is not None:
        return old.number == new.number
    return (old.name, old.type_name) == (new.name, new.type_name)


def _numbered(columns: Sequence[Column]) -> list[Column]:
    """Numbers that can only be one, between those of the neighbours."""
    numbers = [column.number for column in columns]
    for place, number in enumerate(numbers):
        following = next((other for other in numbers[place + 1 :] if other is not None), None)
        lower = 0 if place == 0 else numbers[place - 1]
        if number is None and lower is not None and following is not None and following - lower == 2:
            numbers[place] = lower + 1
    return [replace(column, number=number) for column, number in zip(columns, numbers, strict=True)]

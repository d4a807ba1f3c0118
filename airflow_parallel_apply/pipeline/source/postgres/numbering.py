"""Which column of its table each column of a relation message is.

The message has names and types of its own moment, the catalog that is asked those of now, when a name may be another
column's. What can be told is told by three facts: a message names its columns in the order of their numbers, none that
still lives is missing below its last, and a column that was made behind the message's transaction is not in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from airflow_parallel_apply.pipeline.event import Column, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Namesake:
    """A column of a message with number and fill of the one that bears its name now. `is_newer`: the catalog's words
    about that one were written by a transaction that began behind the message's.
    """

    column: Column
    is_newer: bool


def settle(found: Sequence[Namesake], living: Collection[int], known: Relation | None) -> tuple[Column, ...]:
    """The columns with the numbers that they had, None where that cannot be told. `living`: the numbers of all columns
    that a message would name now. `known`: the definition before.
    """
    columns = tuple(one.column for one in found)
    before = {(column.name, column.type_name): column.number for column in (known.columns if known is not None else ())}
    names = [(column.name, column.type_name) for column in columns]
    is_same = list(before) == names
    settled = tuple(
        _unnumbered(one.column)
        if one.is_newer and name in before and (one.column.number != before[name] or not is_same)
        else one.column
        for one, name in zip(found, names, strict=True)
    )
    if _is_possible(settled, living):
        return settled
    settled = tuple(
        column if column.number == before.get(name, column.number) else _unnumbered(column)
        for column, name in zip(columns, names, strict=True)
    )
    if _is_possible(settled, living):
        return settled
    return tuple(_unnumbered(column) for column in columns)


def _unnumbered(column: Column) -> Column:
    return replace(column, number=None, fill=None)


def _is_possible(columns: Sequence[Column], living: Collection[int]) -> bool:
    """Whether a message can have named these columns, where one without a number may be any."""
    numbers = [column.number for column in columns if column.number is not None]
    if any(one >= other for one, other in pairwise(numbers)):
        return False
    left_out = sum(number < numbers[-1] and number not in numbers for number in living) if numbers else 0
    return left_out <= len(columns) - len(numbers)

"""Folds changes into rows: what a table has after all of them. Rows are in memory, changes are not.

Changes of a key come in their order where all its messages are in one partition. Where the number of partitions or of
channels has changed, a key's messages are in several, which are read side by side: the place of each change in the log
decides, so that its last one counts whenever it comes.

A value that was not sent is that of the row before. The row before the second half of a key's change had another key,
perhaps in another partition: the fold says which deletions took such rows away (`wanted`), and a second fold, which is
told, keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from airflow_parallel_apply.pipeline.compare.protocol import TableRefused

Order: TypeAlias = tuple[int, int]
"""A change's place in the log: seqno, fragno."""

_BEFORE_ALL: Final[Order] = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedChange:
    """One message. `key`: None of a table without one. `values`: of the columns that are compared, as the message has
    them; None of a message that has no row. `unsent`: the places of those that the source did not send.
    """

    order: Order
    operation: str
    partition: int
    key: bytes | None
    values: list[Any] | None
    unsent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Departed:
    """In place of a value: that of the row which this deletion took away."""

    order: Order


@dataclass(frozen=True, slots=True)
class _Unknown:
    """In place of a value: no message had it."""

    order: Order


_Row: TypeAlias = dict[int, tuple[Order, Any]]
"""Values by their places, each with the change that brought it."""


@dataclass(slots=True)
class _State:
    """A key as far as it is known. `values`: None where it was deleted. `taken`: places of values that an older change
    brought, and that change.
    """

    order: Order
    values: list[Any] | None
    taken: dict[int, Order] | None = None


@dataclass(slots=True)
class Fold:
    """`wanted`: deletions whose rows are kept for values that were not sent."""

    wanted: Collection[Order] = ()
    missed: set[Order] = field(default_factory=set)
    """Deletions whose rows a value was taken from, and that were not wanted."""
    _states: dict[bytes, _State] = field(default_factory=dict)
    _bags: dict[int, Counter[tuple[Any, ...]]] = field(default_factory=dict)
    _departed: dict[Order, _Row] = field(default_factory=dict)
    _departures: dict[bytes, list[Order]] = field(default_factory=dict)
    """The wanted deletions of each key."""
    _truncated: Order = _BEFORE_ALL

    def add(self, change: FeedChange) -> None:
        """Take a change in. One that was taken in already changes nothing in a table with a key."""
        if change.operation == "truncate":
            self._truncate(change)
        elif change.key is None:
            self._add_to_bag(change)
        elif change.order > self._truncated:
            self._add_to_key(change.key, self._of_old_key(change))

    def rows(self) -> Iterator[list[Any]]:
        """The rows of now. Errors: `TableRefused` for a value that no message had."""
        for state in self._states.values():
            if state.values is not None:
                yield [self._resolved(value, place) for place, value in enumerate(state.values)]
        together: Counter[tuple[Any, ...]] = Counter()
        for bag in self._bags.values():
            together.update(bag)
        yield from map(list, together.elements())

    def _of_old_key(self, change: FeedChange) -> FeedChange:
        """Values that an insertion lacks are those of the row that the other half of its key's change, the change
        before it, took away.
        """
        if change.operation != "insert" or not change.unsent or change.values is None:
            return change
        deletion = (change.order[0], change.order[1] - 1)
        if deletion not in self.wanted:
            self.missed.add(deletion)
        values = [_Departed(deletion) if n in change.unsent else value for n, value in enumerate(change.values)]
        return replace(change, values=values, unsent=frozenset())

    def _add_to_key(self, key: bytes, change: FeedChange) -> None:
        for deletion in self._departures.get(key, ()):
            if change.order < deletion:
                _fill(self._departed[deletion], change)
        former = self._states.get(key)
        if former is not None and change.order <= former.order:
            _fill_state(former, change)
        elif change.values is None:
            if change.order in self.wanted:
                self._departures.setdefault(key, []).append(change.order)
                self._departed[change.order] = _row_of(former)
            self._states[key] = _State(change.order, None)
        else:
            self._states[key] = _completed(former, change)

    def _truncate(self, change: FeedChange) -> None:
        """Every partition says so, in its place."""
        self._bags.pop(change.partition, None)
        if change.order > self._truncated:
            self._truncated = change.order
            self._states = {key: state for key, state in self._states.items() if state.order > change.order}

    def _add_to_bag(self, change: FeedChange) -> None:
        if change.unsent or change.values is None:
            raise _unknown(change.order)
        bag = self._bags.setdefault(change.partition, Counter())
        # Equal numbers may be different rows: -0 and 0; and NaN would not be found again.
        row = tuple(repr(value) if isinstance(value, float) else value for value in change.values)
        bag[row] += -1 if change.operation == "delete" else 1
        if bag[row] == 0:
            del bag[row]

    def _resolved(self, value: Any, place: int) -> Any:
        while isinstance(value, _Departed):
            _, found = self._departed.get(value.order, {}).get(place, (_BEFORE_ALL, _Unknown(value.order)))
            value = found
        if isinstance(value, _Unknown):
            raise _unknown(value.order)
        return value


def _completed(former: _State | None, change: FeedChange) -> _State:
    """The row behind an insertion or an update: what was not sent is the former row's."""
    if not change.unsent:
        return _State(change.order, change.values)
    values, taken = list(change.values or ()), {}
    known = _row_of(former)
    for place in change.unsent:
        taken[place], values[place] = known.get(place, (_BEFORE_ALL, _Unknown(change.order)))
    return _State(change.order, values, taken)


def _row_of(state: _State | None) -> _Row:
    if state is None or state.values is None:
        return {}
    taken = state.taken or {}
    return {place: (taken.get(place, state.order), value) for place, value in enumerate(state.values)}


def _fill(row: _Row, older: FeedChange) -> None:
    """Take in what a change brings that comes late."""
    for place, value in enumerate(older.values or ()):
        if place not in older.unsent and row.get(place, (_BEFORE_ALL, None))[0] < older.order:
            row[place] = older.order, value


def _fill_state(state: _State, older: FeedChange) -> None:
    """The same for the values that a key's last change did not bring."""
    for place, order in (state.taken or {}).items():
        if state.values is not None and older.values is not None and order < older.order and place not in older.unsent:
            state.values[place] = older.values[place]
            (state.taken or {})[place] = older.order


def _unknown(order: Order) -> TableRefused:
    return TableRefused(
        f"the message of seqno {order[0]} lacks a value that the source did not send, and no message before it has it: "
        "such a table needs REPLICA IDENTITY FULL"
    )

"""Columns get the numbers that they had when a message named them, or none; whatever happened since."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.source.postgres.numbering import Moment, Named, settle


@dataclass
class Table:
    """A table's columns by number, and the greatest number so far."""

    columns: dict[int, str] = field(default_factory=lambda: {1: "id", 2: "a", 3: "b"})
    last: int = 3

    def change(self, what: str, name: str, other: str) -> None:
        """Nothing, where the server would refuse it."""
        number = next((number for number, column in self.columns.items() if column == name), None)
        if what == "add" and number is None:
            self.last += 1
            self.columns[self.last] = name
        elif number is not None and what == "drop":
            del self.columns[number]
        elif number is not None and what == "rename" and other not in self.columns.values():
            self.columns[number] = other

    @property
    def moment(self) -> Moment:
        return Moment(present=frozenset(self.columns), last=self.last)

    @property
    def named(self) -> dict[int, Named]:
        return {number: (name, "text") for number, name in self.columns.items()}


def history(changes: list[tuple[str, str, str]]) -> list[Table]:
    """The table before the first change, and after each."""
    states = [Table()]
    for change in changes:
        table = Table(columns=dict(states[-1].columns), last=states[-1].last)
        table.change(*change)
        states.append(table)
    return states


def changes_of(*kinds: str) -> st.SearchStrategy[list[tuple[str, str, str]]]:
    names = st.sampled_from(["id", "a", "b", "c"])
    return st.lists(st.tuples(st.sampled_from(kinds), names, names), max_size=10)


@settings(max_examples=400)
@given(
    changes=changes_of("add", "drop", "rename"), moments=st.lists(st.integers(0, 10), max_size=3), at=st.integers(0, 10)
)
def test_a_number_that_is_proven_is_the_one_of_then(
    changes: list[tuple[str, str, str]], moments: list[int], at: int
) -> None:
    states = history(changes)
    at = min(at, len(changes))
    earlier = [states[min(moment, at)].moment for moment in moments]
    then = list(states[at].named.values())
    settled = settle(then, earlier=earlier, now=states[-1].moment, names={})
    for number, was in zip(settled, states[at].columns, strict=True):
        assert number in (None, was), (settled, states)


@settings(max_examples=400)
@given(changes=changes_of("add", "drop"), seen=st.integers(0, 10), at=st.integers(0, 10))
def test_names_tell_which_column_it_is_where_no_other_one_can_have_had_the_name(
    changes: list[tuple[str, str, str]], seen: int, at: int
) -> None:
    """Here no column changes its name."""
    states = history(changes)
    at = min(at, len(changes))
    before, now = states[min(seen, at)], states[-1]
    names = {number: [name] for number, name in (before.named | now.named).items()}
    then = list(states[at].named.values())
    settled = settle(then, earlier=[before.moment], now=now.moment, names=names)
    for number, was in zip(settled, states[at].columns, strict=True):
        assert number in (None, was), (settled, states)


def test_columns_that_were_only_renamed_and_added_are_all_known() -> None:
    now = Moment(present=frozenset({1, 2, 3, 4}), last=4)
    then = Moment(present=frozenset({1, 2, 3}), last=3)
    columns = [("id", "integer"), ("c", "text"), ("z", "text"), ("a", "text")]
    assert settle(columns, earlier=[then], now=now, names={}) == (1, 2, 3, 4)


def test_a_column_made_again_under_its_name_is_told_by_nothing() -> None:
    now = Moment(present=frozenset({1, 3}), last=3)
    then = Moment(present=frozenset({1, 2}), last=2)
    names = {1: [("id", "integer")], 2: [("a", "text")], 3: [("a", "text")]}
    assert settle([("id", "integer"), ("a", "text")], earlier=[then], now=now, names=names) == (1, None)


def test_a_column_made_again_of_another_type_is_told_by_it() -> None:
    now = Moment(present=frozenset({1, 3}), last=3)
    then = Moment(present=frozenset({1, 2}), last=2)
    names = {1: [("id", "integer")], 2: [("a", "text")], 3: [("a", "date")]}
    assert settle([("id", "integer"), ("a", "date")], earlier=[then], now=now, names=names) == (1, 3)

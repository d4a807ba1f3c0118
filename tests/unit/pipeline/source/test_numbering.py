"""Columns get the numbers that they had when a message named them, or none; whatever happened since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.source.postgres.catalog.numbering import Moment, settle
from airflow_parallel_apply.pipeline.source.postgres.catalog.retyping import takes_rewrite
from tests.support.examples import examples


@dataclass
class Table:
    """A table's columns by number, with name and type, and the greatest number so far."""

    columns: dict[int, tuple[str, str]] = field(
        default_factory=lambda: {1: ("id", "integer"), 2: ("a", "text"), 3: ("b", "integer")}
    )
    last: int = 3

    def change(self, what: str, name: str, other: str, type_name: str) -> None:
        """Nothing, where the server would refuse it."""
        number = next((number for number, column in self.columns.items() if column[0] == name), None)
        if what == "add" and number is None:
            self.last += 1
            self.columns[self.last] = (name, type_name)
        elif number is not None and what == "drop":
            del self.columns[number]
        elif number is not None and what == "rename" and all(other != taken for taken, _ in self.columns.values()):
            self.columns[number] = (other, self.columns[number][1])

    @property
    def moment(self) -> Moment:
        return Moment(present=frozenset(self.columns), last=self.last)


Change = tuple[str, str, str, str]


def history(changes: list[Change]) -> list[Table]:
    """The table before the first change, and after each."""
    states = [Table()]
    for change in changes:
        table = Table(columns=dict(states[-1].columns), last=states[-1].last)
        table.change(*change)
        states.append(table)
    return states


_NAMES = st.sampled_from(["id", "a", "b", "c"])
_CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "drop", "rename"]), _NAMES, _NAMES, st.sampled_from(["text", "integer"])),
    max_size=10,
)


@settings(max_examples=examples(600))
@given(
    changes=_CHANGES,
    moments=st.lists(st.integers(0, 10), max_size=3),
    at=st.integers(0, 10),
    are_types_known=st.booleans(),
)
def test_a_number_that_is_proven_is_the_one_of_then(
    changes: list[Change], moments: list[int], at: int, are_types_known: bool
) -> None:
    """Names may pass on to any other columns; types are those of before and of now, where they are known."""
    states = history(changes)
    at = min(at, len(changes))
    before = [states[min(moment, at)] for moment in moments]
    types: dict[int, str] = {}
    for state in (*before, states[-1]) if are_types_known else ():
        types |= {number: type_name for number, (_, type_name) in state.columns.items()}
    settled = settle(
        [type_name for _, type_name in states[at].columns.values()],
        earlier=[state.moment for state in before],
        now=states[-1].moment,
        can_be=lambda number, type_name: types.get(number, type_name) == type_name,
    )
    for number, was in zip(settled, states[at].columns, strict=True):
        assert number in (None, was), (settled, states)


def test_columns_that_were_only_renamed_and_added_are_all_known() -> None:
    now = Moment(present=frozenset({1, 2, 3, 4}), last=4)
    then = Moment(present=frozenset({1, 2, 3}), last=3)
    assert _settled("integer", "text", "text", "text", then=then, now=now) == (1, 2, 3, 4)


def test_a_column_made_again_is_told_by_nothing() -> None:
    now = Moment(present=frozenset({1, 3}), last=3)
    then = Moment(present=frozenset({1, 2}), last=2)
    assert _settled("integer", "text", then=then, now=now) == (1, None)


def test_a_column_made_again_of_another_type_is_told_by_it() -> None:
    now = Moment(present=frozenset({1, 3}), last=3)
    then = Moment(present=frozenset({1, 2}), last=2)
    types = {2: "text", 3: "date"}
    assert _settled("integer", "date", then=then, now=now, types=types) == (1, 3)
    assert _settled("integer", "text", then=then, now=now, types=types) == (1, 2)


def _settled(
    *columns: str, then: Moment, now: Moment, types: Mapping[int, str] | None = None
) -> tuple[int | None, ...]:
    known = types or {}
    return settle(
        columns, earlier=[then], now=now, can_be=lambda number, one: not takes_rewrite(known.get(number, one), one)
    )

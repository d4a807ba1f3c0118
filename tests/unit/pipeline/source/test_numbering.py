"""Columns get the numbers that they had when a message named them, or none; whatever happened since."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.event import Column, Relation
from airflow_parallel_apply.pipeline.source.postgres.numbering import Namesake, settle


@dataclass
class Table:
    """A table's columns by number, and when each was last written about."""

    columns: dict[int, str] = field(default_factory=lambda: {1: "id", 2: "a", 3: "b"})
    written: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0, 3: 0})
    last: int = 3

    def change(self, what: str, name: str, other: str, now: int) -> None:
        """Nothing, where the server would refuse it."""
        number = next((number for number, column in self.columns.items() if column == name), None)
        if what == "add" and number is None:
            self.last += 1
            self.columns[self.last], self.written[self.last] = name, now
        elif number is not None and what == "drop":
            del self.columns[number]
        elif number is not None and what == "rename" and other not in self.columns.values():
            self.columns[number], self.written[number] = other, now
        elif number is not None and what == "alter":
            self.written[number] = now


def relation(columns: dict[int, str]) -> Relation:
    made = tuple(Column(name=name, type_name="text", number=number) for number, name in columns.items())
    return Relation(relation_id=1, schema="s", table="t", replica_identity="d", columns=made)


_NAMES = st.sampled_from(["id", "a", "b", "c"])
_CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "drop", "rename", "alter"]), _NAMES, _NAMES), min_size=1, max_size=12
)


@settings(max_examples=400)
@given(changes=_CHANGES, at=st.integers(0, 12), known_at=st.integers(0, 12))
def test_the_number_of_a_column_that_is_known_is_the_one_of_then_or_unknown(
    changes: list[tuple[str, str, str]], at: int, known_at: int
) -> None:
    """Of another column nobody but the catalog says anything."""
    at = min(at, len(changes))
    table = Table()
    known, then = dict(table.columns), dict(table.columns)
    for now, (what, name, other) in enumerate(changes, start=1):
        table.change(what, name, other, now)
        if now == at:
            then = dict(table.columns)
        if now == min(known_at, at):
            known = dict(table.columns)
    numbers = {name: number for number, name in table.columns.items()}
    found = [
        Namesake(
            column=Column(name=name, type_name="text", number=numbers.get(name)),
            is_newer=name in numbers and table.written[numbers[name]] > at,
        )
        for name in then.values()
    ]
    settled = [column.number for column in settle(found, list(table.columns), relation(known))]
    for number, (was, name) in zip(settled, then.items(), strict=True):
        assert number in (None, was) or name not in known.values(), (settled, then, known)

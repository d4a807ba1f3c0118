"""A feed folds into the rows of its table, whatever partitions its keys were in and however these are read."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.compare.kafka.folding import FeedChange, Fold
from airflow_parallel_apply.pipeline.compare.protocol import TableRefused

PARTITIONS = 3
KEYS = 4


class History:
    """Random changes of a table (id, v, big), whose `big` is often not sent, and the rows that are there after them."""

    def __init__(self, seed: int, *, keys_move: bool) -> None:
        self.random = Random(seed)
        self.keys_move = keys_move
        self.shift = 0
        self.rows: dict[int, list[object]] = {}
        self.partitions: list[list[FeedChange]] = [[] for _ in range(PARTITIONS)]

    def write(self, transactions: int) -> None:
        for seqno in range(transactions):
            if self.keys_move and self.random.random() < 0.1:
                self.shift += 1
            key, other = self.random.sample(range(KEYS), 2)
            if self.random.random() < 0.05:
                self._truncate(seqno)
            elif key not in self.rows:
                self._put(seqno, 0, "insert", [key, self.random.random(), self.random.random()])
            elif self.random.random() < 0.2:
                self._delete(seqno, key)
            elif other not in self.rows and self.random.random() < 0.5:
                former = self.rows[key]
                self._delete(seqno, key)
                self._put(seqno, 1, "insert", [other, self.random.random(), former[2]], unsent=True)
            elif self.random.random() < 0.5:
                self._put(seqno, 0, "update", [key, self.random.random(), self.rows[key][2]], unsent=True)
            else:
                self._put(seqno, 0, "update", [key, self.random.random(), self.random.random()])

    def read(self) -> list[FeedChange]:
        """The messages of all partitions, side by side, each one's in their order."""
        turns = [number for number, part in enumerate(self.partitions) for _ in part]
        self.random.shuffle(turns)
        left = [iter(part) for part in self.partitions]
        return [next(left[turn]) for turn in turns]

    def _put(self, seqno: int, fragno: int, operation: str, row: list[object], *, unsent: bool = False) -> None:
        key = row[0]
        assert isinstance(key, int)
        self.rows[key] = row
        values = [*row[:2], None] if unsent else list(row)
        self._send(seqno, fragno, operation, key, values, frozenset({2} if unsent else ()))

    def _delete(self, seqno: int, key: int) -> None:
        del self.rows[key]
        self._send(seqno, 0, "delete", key, None)

    def _truncate(self, seqno: int) -> None:
        self.rows.clear()
        for number, part in enumerate(self.partitions):
            part.append(change((seqno, 0), "truncate", None, None, number))

    def _send(
        self,
        seqno: int,
        fragno: int,
        operation: str,
        key: int,
        values: list[object] | None,
        unsent: frozenset[int] = frozenset(),
    ) -> None:
        number = (key + self.shift) % PARTITIONS
        self.partitions[number].append(change((seqno, fragno), operation, b"%d" % key, values, number, unsent))


def change(
    order: tuple[int, int],
    operation: str,
    key: bytes | None,
    values: list[object] | None,
    partition: int = 0,
    unsent: frozenset[int] = frozenset(),
) -> FeedChange:
    return FeedChange(order=order, operation=operation, partition=partition, key=key, values=values, unsent=unsent)


@given(seed=st.integers(0, 10**9), transactions=st.integers(0, 60), keys_move=st.booleans())
def test_the_rows_are_those_behind_all_changes(seed: int, transactions: int, keys_move: bool) -> None:
    history = History(seed, keys_move=keys_move)
    history.write(transactions)
    fold = Fold()
    for one in history.read():
        fold.add(one)
    if fold.missed:
        fold = Fold(wanted=fold.missed)
        for one in history.read():
            fold.add(one)
    assert sorted(map(repr, fold.rows())) == sorted(map(repr, history.rows.values()))


def test_rows_without_a_key_count_and_zero_has_a_sign() -> None:
    fold = Fold()
    nan = float("nan")
    inserted = [(0.0, 0), (-0.0, 0), (nan, 1), (1.5, 1), (1.5, 0)]
    changes = [("insert", *one) for one in inserted] + [("delete", 0.0, 0), ("delete", nan, 1)]
    for place, (operation, value, partition) in enumerate(changes):
        fold.add(change((place, 0), operation, None, [value], partition))
    assert Counter(str(row[0]) for row in fold.rows()) == {"-0.0": 1, "1.5": 2}


def test_a_tombstone_deletes_where_compaction_left_nothing_else() -> None:
    fold = Fold()
    fold.add(change((1, 0), "insert", b"1", [1]))
    fold.add(change((2, 0), "delete", b"1", None))
    fold.add(change((3, 0), "update", b"2", [2]))
    assert list(fold.rows()) == [[2]]


def test_a_value_that_no_message_has_is_refused_and_not_taken_for_null() -> None:
    fold = Fold()
    fold.add(change((1, 0), "update", b"1", [1, None], unsent=frozenset({1})))
    with pytest.raises(TableRefused, match="seqno 1 lacks a value"):
        list(fold.rows())

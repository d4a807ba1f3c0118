"""Deletions before insertions; one change for each key; four errors for what is no such key."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.encode.polarity import (
    DeletedTwice,
    InsertedTwice,
    TwoNewRows,
    TwoOldRows,
    by_key,
    by_polarity,
)
from airflow_parallel_apply.pipeline.errors import EncodeError

_NAN = float("nan")


def weighted(*rows: tuple[object, object, int]) -> pa.Table:
    keys, values, weights = zip(*rows, strict=True) if rows else ((), (), ())
    key = pa.array(keys, pa.float64() if any(isinstance(one, float) for one in keys) else pa.int64())
    return pa.table({"k": key, "v": pa.array(values, pa.string()), "_weight": pa.array(weights, pa.int64())})


def changes(*rows: tuple[object, object, int], upsert: bool = False) -> list[tuple[object, ...]]:
    found = by_key(weighted(*rows), ["k"], upsert=upsert)
    return [tuple(row.values()) for row in found.to_pylist()]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(-3, 3)), max_size=20))
def test_rows_without_a_key_are_deletions_and_insertions_each_as_often_as_it_weighs(
    rows: list[tuple[int, str, int]],
) -> None:
    deleted, inserted = by_polarity(weighted(*rows))
    for found, sign in ((deleted, -1), (inserted, 1)):
        expected: Counter[tuple[int, str]] = Counter()
        for key, value, weight in rows:
            expected[key, value] += max(weight * sign, 0)
        assert Counter(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == +expected


def test_each_key_is_inserted_updated_or_deleted() -> None:
    found = changes((3, "c", -1), (1, "a", 1), (2, "old", -1), (2, "new", 1), (4, "none", 0))
    assert found == [(1, "a", "insert"), (2, "new", "update"), (3, "c", "delete")]


def test_who_need_not_know_what_was_there_gets_upserts() -> None:
    found = changes((3, "c", -1), (1, "a", 1), (2, "old", -1), (2, "new", 1), upsert=True)
    assert found == [(1, "a", "upsert"), (2, "new", "upsert"), (3, "c", "delete")]


@given(st.dictionaries(st.integers(-5, 5), st.sampled_from(["insert", "update", "delete"])), st.randoms())
def test_the_order_of_rows_does_not_matter(wanted: dict[int, str], random: object) -> None:
    rows = [(key, "new", 1) for key, what in wanted.items() if what != "delete"]
    rows += [(key, "old", -1) for key, what in wanted.items() if what != "insert"]
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert {row[0]: row[2] for row in changes(*rows)} == wanted


@pytest.mark.parametrize(
    ("error", "rows"),
    [
        (InsertedTwice, [(1, "a", 2)]),
        (DeletedTwice, [(1, "a", -2)]),
        (TwoNewRows, [(1, "a", 1), (2, "x", 1), (1, "b", 1)]),
        (TwoNewRows, [(1, "a", 1), (1, "b", 1), (1, "c", -1)]),
        (TwoOldRows, [(1, "a", -1), (2, "x", 1), (1, "b", -1)]),
        (TwoNewRows, [(None, "a", 1), (None, "b", 1)]),
        (TwoOldRows, [(0.0, "a", -1), (-0.0, "b", -1)]),
        (TwoOldRows, [(_NAN, "a", -1), (_NAN, "b", -1)]),
    ],
)
def test_what_is_no_key_is_one_of_four_errors(error: type[EncodeError], rows: list[tuple[object, str, int]]) -> None:
    with pytest.raises(EncodeError, match="key") as found:
        changes(*rows)
    assert type(found.value) is error
    assert found.value.values == f"k={rows[0][0]!r}"
    assert "k=" not in str(found.value), "values are told where they may be seen alone"


def test_there_is_no_change_without_rows() -> None:
    assert changes() == []
    assert [part.num_rows for part in by_polarity(weighted())] == [0, 0]

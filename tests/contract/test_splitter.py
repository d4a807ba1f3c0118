"""Promises of every splitter, asked of Arrow's in this process; `integration/spark/test_splitter.py` asks Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given

from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from tests.contract.splitters import COUNTS, KEYS, assert_of_about_equal_size, assert_ranges, tables


def split(rows: pa.Table, keys: Sequence[str], count: int) -> list[pa.Table]:
    return [pa.Table.from_batches(list(cursor.open()), rows.schema) for cursor in cursors(rows, keys, count)]


@given(rows=tables(), keys=KEYS, count=COUNTS)
def test_ranges_are_disjoint_complete_and_ascend(rows: pa.Table, keys: Sequence[str], count: int) -> None:
    assert_ranges(split, rows, keys, count)


def test_ranges_are_of_about_equal_size() -> None:
    assert_of_about_equal_size(split)


def test_a_skewed_key_does_not_take_the_others_along() -> None:
    rows = pa.table({"k": [1] * 9_000 + list(range(2, 1_002)), "row": range(10_000)})
    assert_ranges(split, rows, ["k"], 4)
    assert max(part.num_rows for part in split(rows, ["k"], 4)) <= 9_500


def test_of_fewer_keys_than_ranges_each_has_its_own() -> None:
    rows = pa.table({"k": ["a"] * 98 + ["b", None]})
    assert [part.num_rows for part in split(rows, ["k"], 16)] == [98, 1, 1]


def test_there_is_no_range_without_rows() -> None:
    assert split(pa.table({"k": pa.array([], pa.int64())}), ["k"], 4) == []


def test_rows_keep_their_order_inside_a_range() -> None:
    rows = pa.table({"k": [3, 1, 2, 1, 3, 2] * 50, "row": range(300)})
    for part in split(rows, ["k"], 3):
        assert part.column("row").to_pylist() == sorted(part.column("row").to_pylist())


@pytest.mark.parametrize("count", [0, -1, 1_000_000])
def test_a_count_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match="ranges"):
        split(pa.table({"k": [1]}), ["k"], count)

"""Promises of every splitter; each occupant gives the rows of its ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.encode.ranges import comparable

Split = Callable[[pa.Table, Sequence[str], int], list[pa.Table]]
"""Rows, key columns and a count to the rows of each range, in order."""

FLOATS = st.none() | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.5])
TEXTS = st.none() | st.text("abé", max_size=2)
NUMBERS = st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
SCHEMA = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("t", pa.string()), ("row", pa.int64())])


@st.composite
def tables(draw: st.DrawFn, max_size: int = 60) -> pa.Table:
    """Keys of three kinds, with duplicates and nulls; each row has a number of its own."""
    rows = draw(st.lists(st.tuples(NUMBERS, FLOATS, TEXTS), max_size=max_size))
    columns = [pa.array([row[place] for row in rows], SCHEMA.field(place).type) for place in range(3)]
    return pa.Table.from_arrays([*columns, pa.array(range(len(rows)), pa.int64())], schema=SCHEMA)


KEYS = st.sampled_from([("n",), ("f",), ("t",), ("t", "n"), ("f", "t"), ("n", "f", "t"), ()])
COUNTS = st.sampled_from([1, 2, 3, 4, 16])


def assert_ranges(split: Split, rows: pa.Table, keys: Sequence[str], count: int) -> None:
    """Hold a splitter to what it promises of these rows."""
    found = split(rows, keys, count)
    assert len(found) <= count
    numbers = [number for part in found for number in part.column("row").to_pylist()]
    assert sorted(numbers) == list(range(rows.num_rows)), "each row lies in one range"
    if not keys:
        return
    places: dict[tuple[Any, ...], int] = {}
    before: tuple[Any, ...] | None = None
    for place, part in enumerate(found):
        ordered = sorted(_keys(part, keys))
        for key in ordered:
            assert places.setdefault(key, place) == place, f"the rows of key {key} lie in two ranges"
        if ordered:
            assert before is None or before < ordered[0], "a range begins above the end of the one before it"
            before = ordered[-1]


def assert_of_about_equal_size(split: Split) -> None:
    rows = 20_000
    keys = pc.multiply(pa.array(range(rows), pa.int64()), 7919)
    table = pa.table({"k": keys.take(pa.array([place * 7919 % rows for place in range(rows)])), "row": range(rows)})
    for count in (2, 4, 16):
        sizes = [part.num_rows for part in split(table, ["k"], count)]
        assert len(sizes) == count
        assert max(sizes) < 1.6 * rows / count
        assert min(sizes) > 0.4 * rows / count


def _keys(part: pa.Table, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """As they sort: a null above everything."""
    columns = [comparable(part.column(key)).to_pylist() for key in keys]
    return [
        tuple((value is None, "" if value is None else value) for value in row) for row in zip(*columns, strict=True)
    ]

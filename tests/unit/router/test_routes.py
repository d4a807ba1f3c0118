"""Routing is a function of the value and the number of outputs; whatever cannot be one is refused."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.router.engine import HashRoutes, MirrorRoutes, PlacedRoutes, RangeRoutes, Routes, Span
from tests.support.routed import SCHEMA, batch, placed

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.decimal128(9, 2): st.decimals(-9999, 9999, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.dictionary(pa.int32(), pa.string()): st.text(max_size=2),
}


def outputs_of(routes: Routes, rows: pa.RecordBatch) -> list[int]:
    """The output of each row; rows are told by their number."""
    found = {}
    for output, piece in routes.split(rows):
        found.update(dict.fromkeys(piece.column("number").to_pylist(), output))
    return [found[number] for number in rows.column("number").to_pylist()]


def table(type_: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, type_), "number": list(range(len(values)))})


@pytest.mark.parametrize("type_", VALUES, ids=str)
@given(data=st.data())
def test_equal_values_get_one_output_wherever_they_stand(type_: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], min_size=1, max_size=30))
    outputs = data.draw(st.integers(2, 64))
    rows = table(type_, values + values[::-1])
    routes = HashRoutes(rows.schema, ["value"], outputs)
    found = outputs_of(routes, rows)
    assert found == found[::-1]
    assert all(0 <= output < outputs for output in found)
    part = data.draw(st.integers(0, len(found) - 1))
    assert outputs_of(routes, rows.slice(part)) == found[part:]


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        (pa.float64(), 0.0, -0.0),
        (pa.float64(), float("nan"), -float("nan")),
        (pa.decimal128(5, 2), Decimal("1.0"), Decimal("1.00")),
        (pa.int64(), None, None),
    ],
)
def test_what_is_equal_in_two_ways_gets_one_output(type_: pa.DataType, one: Any, other: Any) -> None:
    rows = table(type_, [one, other])
    first, second = outputs_of(HashRoutes(rows.schema, ["value"], 64), rows)
    assert first == second


def test_the_width_of_a_number_decides_nothing() -> None:
    found = [
        outputs_of(HashRoutes(rows.schema, ["value"], 64), rows)
        for rows in (table(type_, [1, 2, 100]) for type_ in (pa.int8(), pa.int64(), pa.uint64()))
    ]
    assert found[0] == found[1] == found[2]


def test_all_columns_count() -> None:
    rows = pa.record_batch({"a": [1] * 50, "b": list(range(50)), "number": list(range(50))})
    assert len(set(outputs_of(HashRoutes(rows.schema, ["a"], 8), rows))) == 1
    assert len(set(outputs_of(HashRoutes(rows.schema, ["a", "b"], 8), rows))) == 8


def test_every_process_and_release_hashes_alike() -> None:
    program = (
        "import pyarrow as pa; from airflow_parallel_apply.router.engine.hashing import hashes;"
        "print(hashes([pa.array(['a', None, 'ü']), pa.array([1, 2, None])]).tolist())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found == "[4531710797098758022, 10908715710628110181, 9695168132325203312]\n"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: HashRoutes(SCHEMA, [], 2), "needs a column"),
        (lambda: HashRoutes(SCHEMA, ["nobody"], 2), "no column of this name, but output, number, payload"),
        (lambda: HashRoutes(SCHEMA, ["number"], 1), "at least 2"),
        (lambda: HashRoutes(pa.schema([("a", pa.list_(pa.int64()))]), ["a"], 2), "hash of list"),
        (lambda: RangeRoutes(SCHEMA, "nobody", [], 1), "no column of this name"),
        (lambda: RangeRoutes(SCHEMA, "number", [Span(start=1, end=1, output=0)], 1), "empty"),
        (
            lambda: RangeRoutes(SCHEMA, "number", [Span(start=0, end=5, output=0), Span(start=4, end=6, output=0)], 1),
            "overlap",
        ),
        (
            lambda: RangeRoutes(SCHEMA, "number", [Span(start=5, end=9, output=0), Span(start=1, end=3, output=0)], 1),
            "not sorted",
        ),
        (lambda: RangeRoutes(SCHEMA, "number", [Span(start=0, end=5, output=1)], 1), "no output 1"),
        (lambda: RangeRoutes(SCHEMA, "number", [], 1, default=1), "no output 1"),
        (lambda: MirrorRoutes(0), "at least 1"),
        (lambda: placed(0), "at least 1"),
    ],
)
def test_routes_that_cannot_be_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.parametrize(
    ("type_", "values", "spans"),
    [
        (pa.int64(), [-1, 0, 4, 5, 9, 10, None], (0, 5, 10)),
        (pa.string(), ["", "a", "ay", "b", "by", "c", None], ("a", "b", "c")),
        (
            pa.date32(),
            [date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 31), date(2026, 2, 1), None],
            (date(2026, 1, 1), date(2026, 2, 1), date(2026, 2, 1)),
        ),
    ],
    ids=str,
)
def test_a_span_has_its_start_and_not_its_end(type_: pa.DataType, values: list[Any], spans: tuple[Any, ...]) -> None:
    low, middle, high = spans
    rows = table(type_, values)
    found = outputs_of(
        RangeRoutes(
            rows.schema,
            "value",
            [Span(start=low, end=middle, output=0)] + [Span(start=middle, end=high, output=1)] * (middle != high),
            3,
            default=2,
        ),
        rows,
    )
    wanted = [2 if value is None or value < low or value >= high else 0 if value < middle else 1 for value in values]
    assert found == wanted


@pytest.mark.parametrize("value", [7, None])
def test_a_value_in_no_span_is_an_error_without_a_default(value: int | None) -> None:
    rows = table(pa.int64(), [value])
    routes = RangeRoutes(rows.schema, "value", [Span(start=0, end=5, output=0)], 1)
    with pytest.raises(ConfigurationError, match="in no span"):
        list(routes.split(rows))


def test_a_mirror_gives_every_row_to_every_output_and_copies_none() -> None:
    rows = batch([0, 1, 2])
    pieces = dict(MirrorRoutes(3).split(rows))
    assert list(pieces) == [0, 1, 2]
    assert all(piece is rows for piece in pieces.values())


def test_placed_rows_go_where_they_are_placed_and_nowhere_below_zero() -> None:
    rows = batch([1, -1, 0, 1, -2])
    found = {output: piece.column("number").to_pylist() for output, piece in placed(2).split(rows)}
    assert found == {0: [2], 1: [0, 3]}


def test_a_row_beyond_the_outputs_is_an_error() -> None:
    with pytest.raises(ValueError, match="placed at 2, beyond the 2"):
        list(placed(2).split(batch([0, 2])))


@given(places=st.lists(st.integers(0, 63), max_size=200))
def test_pieces_have_memory_of_their_own(places: list[int]) -> None:
    rows = batch(places)
    pieces = dict(PlacedRoutes(lambda found: found.column("output").to_numpy(), 64).split(rows))
    assert sum(piece.num_rows for piece in pieces.values()) == len(places)
    for piece in pieces.values():
        # A slice of what was gathered for all would keep all of it.
        assert piece.get_total_buffer_size() <= piece.nbytes + 200


def test_no_rows_go_nowhere() -> None:
    for routes in (placed(3), MirrorRoutes(3), HashRoutes(SCHEMA, ["number"], 3)):
        assert list(routes.split(batch([]))) == []

"""Law 1: same key, same channel, whatever the text that the source chose for it."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.partition.key import (
    buckets,
    canonical,
    join,
    key_order,
    keyless_buckets,
    table_bucket,
)
from airflow_parallel_apply.pipeline.source.postgres.catalog.key_kinds import key_kind

_DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9)
_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


def texts(*values: str) -> pa.StringArray:
    return pa.array(values, pa.string())


@settings(deadline=None)
@given(number=_DECIMALS, zeros=st.integers(0, 5))
def test_equal_numerics_have_one_text(number: Decimal, zeros: int) -> None:
    short = format(number.normalize(), "f")
    short = "0" if short == "-0" else short
    long = short + ("" if "." in short else ".") + "0" * (zeros + 1)
    assert canonical(KeyKind.DECIMAL, texts(short, long)).to_pylist() == [short, short]


@settings(deadline=None)
@given(numbers=st.lists(_DECIMALS, min_size=2, max_size=20))
def test_different_numerics_have_different_texts(numbers: list[Decimal]) -> None:
    made = canonical(KeyKind.DECIMAL, texts(*(format(number + 0, "f").replace("-0.000000", "0") for number in numbers)))
    assert len(set(made.to_pylist())) == len(set(numbers))


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        (KeyKind.DECIMAL, "100", "100.00"),
        (KeyKind.DECIMAL, "NaN", "NaN"),
        (KeyKind.FLOAT, "0", "-0"),
        (KeyKind.BLANK_PADDED, "ab", "ab   "),
    ],
)
def test_texts_that_the_index_holds_equal_are_one(kind: KeyKind, left: str, right: str) -> None:
    one, other = canonical(kind, texts(left, right)).to_pylist()
    assert one == other


def test_trailing_zeros_of_whole_numbers_and_trailing_blanks_of_text_stay() -> None:
    assert canonical(KeyKind.DECIMAL, texts("100", "0.100")).to_pylist() == ["100", "0.1"]
    assert canonical(KeyKind.TEXT, texts("ab ")).to_pylist() == ["ab "]


@settings(deadline=None)
@given(keys=st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=20))
def test_composite_keys_are_joined_unambiguously(keys: list[tuple[str, str]]) -> None:
    joined = join([texts(*(left for left, _ in keys)), texts(*(right for _, right in keys))]).to_pylist()
    assert len(set(joined)) == len(set(keys))


def test_types_without_a_canonical_text_are_told_apart() -> None:
    assert key_kind("interval", is_enum=False, is_deterministic=True) is KeyKind.NOT_CANONICAL
    assert key_kind("public.citext", is_enum=False, is_deterministic=True) is KeyKind.NOT_CANONICAL
    assert key_kind("text", is_enum=False, is_deterministic=False) is KeyKind.NOT_CANONICAL
    assert key_kind("public.mood", is_enum=True, is_deterministic=True) is KeyKind.EXACT


def test_hashes_are_those_of_spark_sql() -> None:
    """Spark 4: SELECT pmod(xxhash64(concat('public.t', decode(X'00', 'UTF-8'), k)), 1024), and of two bigints."""
    assert buckets("public.t", texts("1", "2", "")).tolist() == [974, 642, table_bucket("public.t")]
    assert keyless_buckets(np.array([4, 4]), np.array([0, 1])).tolist() == [541, 514]


def test_the_same_key_of_two_tables_lies_in_different_buckets() -> None:
    assert buckets("public.a", texts("1")) != buckets("public.b", texts("1"))


def test_rows_without_a_key_spread_over_all_buckets() -> None:
    found = keyless_buckets(np.zeros(50_000, dtype=np.int64), np.arange(50_000))
    counts = np.bincount(found, minlength=BUCKET_COUNT)
    assert counts.min() > 0
    assert counts.max() < 120


@settings(deadline=None)
@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_integers_are_their_own_order(numbers: list[int]) -> None:
    assert key_order([KeyKind.INTEGER], [texts(*map(str, numbers))]).tolist() == numbers


@settings(deadline=None)
@given(values=st.lists(_TEXTS, min_size=1, max_size=20))
def test_texts_sort_by_their_first_bytes(values: list[str]) -> None:
    order = key_order([KeyKind.TEXT], [texts(*values)]).tolist()
    expected = [int.from_bytes(value.encode()[:8].ljust(8, b"\0")) - 2**63 for value in values]
    assert order == expected


@settings(deadline=None)
@given(values=st.lists(st.uuids(), min_size=1, max_size=20))
def test_uuids_sort_by_their_first_64_bits(values: list[object]) -> None:
    order = key_order([KeyKind.UUID], [texts(*map(str, values))]).tolist()
    assert order == [int(str(value).replace("-", "")[:16], 16) - 2**63 for value in values]


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (KeyKind.DECIMAL, ["-1000", "-1.5", "0", "0.25", "3", "1000000"]),
        (KeyKind.FLOAT, ["-Infinity", "-2", "-1e-10", "0", "1e-10", "1e+20", "Infinity", "NaN"]),
        (KeyKind.TIME, ["1999-12-31 23:59:59", "2024-02-29 00:00:00", "2024-02-29 00:00:00.5"]),
        (KeyKind.TIME, ["1999-12-31", "2024-02-29", "infinity"]),
        (KeyKind.TIME, ["-infinity", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "10000-01-01 00:00:00"]),
        (KeyKind.TIME, ["10000-01-01 00:00:00+00 BC", "0044-03-15 00:00:00+00 BC", "0044-03-15 00:00:00+00"]),
        (KeyKind.DECIMAL, ["-Infinity", "-1" + 400 * "0", "-1", "0", "1", "1" + 400 * "0", "Infinity", "NaN"]),
        (KeyKind.TIME, ["2024-02-29 00:00:00+00", "2024-02-29 00:00:01+00"]),
    ],
)
def test_order_is_that_of_the_values(kind: KeyKind, ascending: list[str]) -> None:
    order = key_order([kind], [texts(*ascending)]).tolist()
    assert order == sorted(order)


def test_composite_keys_sort_by_their_first_column_then_by_their_second() -> None:
    pairs = [("-5", "9"), ("1", "-2"), ("1", "7"), ("2", "-9"), ("70000", "1")]
    kinds = [KeyKind.INTEGER, KeyKind.INTEGER]
    order = key_order(kinds, [texts(*(left for left, _ in pairs)), texts(*(right for _, right in pairs))]).tolist()
    assert order == sorted(order)
    assert len(set(order)) == len(order)


_MOMENTS = st.datetimes().map(lambda found: found.isoformat(" "))
_TIMES = st.one_of(
    st.sampled_from(
        ["infinity", "-infinity", "0044-03-15 BC", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC"]
    ),
    _MOMENTS,
    _MOMENTS.map(lambda text: text + "+00"),
    st.dates().map(str),
)
_VALUES = {
    KeyKind.INTEGER: st.integers(-(2**63), 2**63 - 1).map(str),
    KeyKind.DECIMAL: st.one_of(
        st.sampled_from(["NaN", "Infinity", "-Infinity", "9" * 400, "-" + "9" * 400, "0." + "0" * 400 + "1"]),
        _DECIMALS.map(lambda number: format(number, "f")),
    ),
    KeyKind.FLOAT: st.floats().map(lambda number: {"nan": "NaN", "inf": "Infinity"}.get(repr(number), repr(number))),
    KeyKind.TEXT: _TEXTS,
    KeyKind.BLANK_PADDED: _TEXTS.map(lambda text: text.ljust(12)),
    KeyKind.UUID: st.uuids().map(str),
    KeyKind.TIME: _TIMES,
    KeyKind.EXACT: st.one_of(st.sampled_from(["t", "f"]), st.binary().map(lambda found: "\\x" + found.hex())),
    KeyKind.NOT_CANONICAL: _TEXTS,
}


def test_there_are_values_of_every_kind() -> None:
    assert _VALUES.keys() == set(KeyKind)


@settings(deadline=None)
@given(data=st.data())
def test_a_values_order_does_not_depend_on_its_batch(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KeyKind), min_size=1, max_size=3))
    keys = data.draw(st.lists(st.tuples(*(_VALUES[kind] for kind in kinds)), min_size=1, max_size=8))

    def order(*batch: tuple[str, ...]) -> list[int]:
        return key_order(
            kinds,
            [canonical(kind, texts(*column)) for kind, column in zip(kinds, zip(*batch, strict=True), strict=True)],
        ).tolist()

    assert order(*keys) == [number for key in keys for number in order(key)]

"""Texts become typed columns exactly or not at all, and come back as the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.encode.columns.parse import Unfit, parse
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.columns.types import arrow_type
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType


def _seconds(value: str, microsecond: int) -> str:
    return f"{value}.{microsecond:06}".rstrip("0").rstrip(".")


_DATES = st.dates().map(str)
_TIMES = st.times().map(lambda found: _seconds(f"{found:%H:%M:%S}", found.microsecond))
_MOMENTS = st.tuples(_DATES, _TIMES).map(" ".join)
_TEXTS = {
    "boolean": st.sampled_from("tf"),
    "integer 16": st.integers(-(2**15), 2**15 - 1).map(str),
    "integer 32": st.integers(-(2**31), 2**31 - 1).map(str),
    "integer 64": st.integers(-(2**63), 2**63 - 1).map(str),
    "decimal 9 8": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda found: f"{Decimal(found).scaleb(-8):.8f}"),
    "decimal 38 0": st.integers(-(10**38) + 1, 10**38 - 1).map(str),
    "decimal 38 38": st.integers(0, 10**38 - 1).map(lambda found: f"0.{found:038}"),
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    "bytes": st.binary(max_size=9).map(lambda found: "\\x" + found.hex()),
    "date": _DATES,
    "time": _TIMES,
    "timestamp": _MOMENTS,
    "instant": _MOMENTS.map(lambda found: f"{found}+00"),
    "opaque": st.text(st.characters(codec="utf-8", exclude_characters="\0")),
}


@pytest.mark.parametrize("name", _TEXTS)
@given(data=st.data())
def test_a_text_comes_back_letter_by_letter(name: str, data: st.DataObject) -> None:
    found = data.draw(st.lists(st.none() | _TEXTS[name], max_size=6))
    value = ValueType.parse(name)
    given_texts = pa.array(found, pa.string())
    typed = parse(given_texts, value)
    assert typed.type == (arrow_type(value) or pa.string())
    assert texts(typed).to_pylist() == found
    # A part of an array is what it looks like.
    assert texts(parse(given_texts.slice(1), value).slice(1)).to_pylist() == found[2:]


@pytest.mark.parametrize(("size", "width"), [(32, 32), (64, 64)])
@given(data=st.data())
def test_a_float_comes_back_as_the_same_number_and_a_strange_one_by_its_name(
    size: int, width: int, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.none() | st.floats(width=width), max_size=6))
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    shortest = pa.array(numbers, arrow_type(ValueType(kind=ValueKind.FLOAT, size=size))).cast(pa.string()).to_pylist()
    given_texts = [names.get(text, text) for text in shortest]
    typed = parse(pa.array(given_texts, pa.string()), ValueType(kind=ValueKind.FLOAT, size=size))
    assert list(map(repr, typed.to_pylist())) == list(map(repr, numbers))
    assert texts(typed).to_pylist() == given_texts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("boolean", "yes"),
        ("integer 16", "32768"),
        ("integer 64", "9223372036854775808"),
        ("decimal 4 2", "NaN"),
        ("decimal 4 2", "1.005"),
        ("float 32", "1e39"),
        ("float 64", "1e999"),
        ("bytes", "abc"),
        ("bytes", "\\x1"),
        ("bytes", "\\xzz"),
        ("date", "infinity"),
        ("date", "-infinity"),
        ("date", "0044-03-15 BC"),
        ("date", "10000-01-01"),
        ("time", "24:00:00"),
        ("timestamp", "infinity"),
        ("timestamp", "4713-11-24 00:00:00 BC"),
        ("timestamp", "294276-12-31 23:59:59.999999"),
        ("timestamp", "2020-01-01 00:00:00.123456789"),
        ("instant", "-infinity"),
        ("instant", "1937-01-01 00:00:00+00:19:32"),
    ],
)
def test_what_a_type_cannot_hold_makes_the_column_unfit_and_is_named(name: str, text: str) -> None:
    column = pa.array([None, _some(name), text, None, text], pa.string())
    with pytest.raises(Unfit) as error:
        parse(column, ValueType.parse(name))
    assert (error.value.row, error.value.text) == (2, text)


def _some(name: str) -> str:
    moment = "2020-01-01 00:00:00"
    some = {"boolean": "t", "bytes": "\\x", "date": "2020-01-01", "time": "00:00:00"}
    return {**some, "timestamp": moment, "instant": f"{moment}+00"}.get(name, "1")


def test_types_are_those_that_readers_know() -> None:
    typed: Sequence[tuple[str, str, object]] = (
        ("boolean", "t", True),
        ("integer 64", "-9223372036854775808", -(2**63)),
        ("decimal 10 2", "-0.01", Decimal("-0.01")),
        ("bytes", "\\x00ff", b"\x00\xff"),
        ("date", "0001-01-01", date(1, 1, 1)),
        ("time", "23:59:59.999999", time(23, 59, 59, 999999)),
        ("timestamp", "9999-12-31 23:59:59.999999", datetime.max),
        ("instant", "2020-01-01 00:00:00.5+00", datetime(2020, 1, 1, tzinfo=UTC) + timedelta(milliseconds=500)),
    )
    for name, text, value in typed:
        assert parse(pa.array([text]), ValueType.parse(name)).to_pylist() == [value]


def test_what_has_no_arrow_type_is_text() -> None:
    assert arrow_type(ValueType(kind=ValueKind.OPAQUE)) is None
    assert arrow_type(ValueType(kind=ValueKind.DECIMAL, precision=39, scale=2)) is None
    assert arrow_type(ValueType(kind=ValueKind.DECIMAL, precision=38, scale=38)) == pa.decimal128(38, 38)


def test_a_type_of_values_is_read_as_it_is_written() -> None:
    for name in _TEXTS:
        assert str(ValueType.parse(name)) == name
    for wrong in ("", "integer", "integer 1 2", "decimal 1", "text 3", "point"):
        with pytest.raises(ValueError, match="is n"):
            ValueType.parse(wrong)

"""Rows of a log become typed rows: values, what became of the row, what was not sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.encode.columns.rows import UnfitColumns, row_typing, typed_rows
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from tests.support.log_rows import Row, batch, relation

_VALUES = ("integer 32", "decimal 6 2", "opaque")
_T = relation(1, "t", "id n o", key="id")
T = replace(
    _T,
    columns=tuple(
        replace(column, value=ValueType.parse(value)) for column, value in zip(_T.columns, _VALUES, strict=True)
    ),
)


def typed(*rows: Row, of: Relation = T, as_text: tuple[str, ...] = ()) -> list[dict[str, object]]:
    typing = row_typing(of, as_text)
    moment = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * len(rows), pa.timestamp("us", tz="UTC"))
    found: list[dict[str, object]] = typed_rows(batch({1: of}, rows), typing, moment).to_pylist()
    return found


def test_each_change_has_its_typed_values_and_says_what_it_is() -> None:
    found = typed(
        Row(seqno=1, operation="I", values=["1", "1.50", "x"]),
        Row(seqno=2, operation="U", values=["1", "2.50", None], unsent=[2]),
        Row(seqno=3, operation="X", values=["1", None, None]),
        Row(seqno=3, operation="K", values=["2", "2.50", "x"], fragno=1, old_key=["1"]),
        Row(seqno=4, operation="D", values=["2", None, None]),
        Row(seqno=5, operation="T", values=["cascade"]),
    )
    assert [row["_operation"] for row in found] == ["insert", "update", "delete", "insert", "delete", "truncate"]
    assert [row["id"] for row in found] == [1, 1, 1, 2, 2, None]
    assert [str(row["n"]) for row in found] == ["1.50", "2.50", "None", "2.50", "None", "None"]
    assert [row["_unsent"] for row in found] == [None, '["o"]', None, None, None, None]
    assert [row["_old_key"] for row in found] == [None, None, None, "1", None, None]
    assert [(row["_seqno"], row["_fragno"]) for row in found] == [(1, 0), (2, 0), (3, 0), (3, 1), (4, 0), (5, 0)]


def test_rows_of_the_initial_copy_are_read_and_those_behind_it_are_inserted() -> None:
    rows = [Row(seqno=seqno, operation="I", values=[str(seqno), "1.00", "x"]) for seqno in (0, 1, 2)]
    moment = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", tz="UTC"))
    found = typed_rows(batch({1: T}, rows), row_typing(T), moment, copied_through=1)
    assert found.column("_operation").to_pylist() == ["read", "read", "insert"]


def test_columns_with_values_that_do_not_fit_are_all_named_and_can_be_kept_as_text() -> None:
    rows = [
        Row(seqno=1, operation="I", values=["1", "1.00", "x"]),
        Row(seqno=7, operation="I", values=["a", "NaN", "x"]),
    ]
    with pytest.raises(UnfitColumns) as error:
        typed(*rows)
    assert error.value.columns == ("id", "n")
    assert (error.value.seqno, error.value.table) == (7, "public.t")
    assert [row["n"] for row in typed(*rows, as_text=("id", "n"))] == ["1.00", "NaN"]


def test_a_column_named_like_one_of_ours_keeps_its_name() -> None:
    odd = relation(1, "t", "_seqno __fragno", key="_seqno")
    (found,) = typed(Row(seqno=5, operation="I", values=["a", "b"]), of=odd)
    assert (found["_seqno"], found["__fragno"], found["___seqno"], found["___fragno"]) == ("a", "b", 5, 0)


def test_a_table_without_columns_has_rows() -> None:
    (found,) = typed(Row(seqno=5, operation="I", values=[]), of=replace(T, columns=()))
    assert found["_operation"] == "insert"


def test_a_row_of_another_width_is_an_error() -> None:
    with pytest.raises(LogError, match="3 values"):
        typed(Row(seqno=5, operation="I", values=["1", "2.00"]))

"""Texts of a column as typed values: exactly, or not at all. Arrow's kernels and numpy; no Python for a row.

A value that the type cannot hold (infinity among dates, NaN among decimals, a year before 1 or after 9999, 24:00:00,
an offset with seconds) makes the whole column unfit: its readers then get texts, never something near the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.bytes_text import bytes_of
from airflow_parallel_apply.pipeline.encode.columns.types import arrow_type
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType

NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_SOME_DAY: Final = "1970-01-01"


class Unfit(ValueError):  # a finding about values, which callers handle
    """A text that the column's type cannot hold. `row`: its place, counted from 0."""

    def __init__(self, row: int, text: str | None) -> None:
        super().__init__(f"row {row}: {text!r}")
        self.row = row
        self.text = text


def parse(texts: pa.StringArray, value: ValueType) -> pa.Array:
    """The typed values of texts; null of null. The type is that of `arrow_type`. Errors: `Unfit`, which names the first
    row that does not fit.
    """
    typed = arrow_type(value)
    if typed is None or value.kind is ValueKind.TEXT:
        return texts
    convert = _CONVERT.get(value.kind, _cast)
    try:
        return convert(texts, typed)
    except (pa.ArrowInvalid, ValueError):
        row = _first_refused(texts, lambda part: convert(part, typed))
        raise Unfit(row, texts[row].as_py()) from None


def _cast(texts: pa.StringArray, typed: pa.DataType) -> pa.Array:
    return pc.cast(texts, typed)


def _booleans(texts: pa.StringArray, typed: pa.DataType) -> pa.BooleanArray:
    del typed
    found = pc.equal(texts, "t")
    if not pc.all(pc.or_(found, pc.equal(texts, "f"))).as_py() and texts.null_count < len(texts):
        raise ValueError("a text that is neither t nor f")
    return found


def _floats(texts: pa.StringArray, typed: pa.DataType) -> pa.Array:
    """Numbers beyond the type's range would become infinite."""
    found = pc.cast(texts, typed)
    strange = pc.fill_null(pc.invert(pc.is_finite(found)), False)
    if pc.any(strange).as_py() and not pc.all(pc.is_in(texts.filter(strange), pa.array(NOT_FINITE))).as_py():
        raise ValueError("a number beyond the range of the type")
    return found


def _times(texts: pa.StringArray, typed: pa.DataType) -> pa.Array:
    """Arrow reads no times by themselves."""
    moments = pc.cast(pc.binary_join_element_wise(_SOME_DAY, texts, " "), pa.timestamp("us"))
    return moments.cast(pa.int64()).cast(typed)


def _bytes(texts: pa.StringArray, typed: pa.DataType) -> pa.BinaryArray:
    del typed
    return bytes_of(texts)


def _first_refused(texts: pa.StringArray, convert: Callable[[pa.StringArray], object]) -> int:
    """The first row of texts of which at least one is refused."""
    accepted, refused = 0, len(texts)
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        try:
            convert(texts.slice(accepted, middle - accepted))
            accepted = middle
        except (pa.ArrowInvalid, ValueError):
            refused = middle
    return accepted


_CONVERT: Final[dict[ValueKind, Callable[[pa.StringArray, pa.DataType], pa.Array]]] = {
    ValueKind.BOOLEAN: _booleans,
    ValueKind.FLOAT: _floats,
    ValueKind.TIME: _times,
    ValueKind.BYTES: _bytes,
}


def not_finite_texts(values: pa.FloatingPointArray) -> pa.StringArray:
    """Null for finite numbers, else the text of the value; of a null nothing either."""
    infinite = pc.if_else(pc.greater(values, 0.0), NOT_FINITE[1], NOT_FINITE[2])
    named = pc.if_else(pc.is_nan(values), NOT_FINITE[0], infinite)
    finite = pc.is_finite(values)
    return pc.if_else(finite, pa.scalar(None, pa.string()), named)


def has_not_finite(values: pa.FloatingPointArray) -> bool:
    """True if a value is NaN or infinite."""
    numbers = values.to_numpy(zero_copy_only=False)
    finite = np.isfinite(numbers)
    return not (finite.all() if not values.null_count else finite[values.is_valid().to_numpy(False)].all())

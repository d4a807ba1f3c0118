"""Typed values as the source's texts: the way back, for targets that take text.

Of every kind the text is the one that was read, letter by letter, with one exception: a float has the same digits and
is the same number, but where its exponent begins is Arrow's choice (`1e-05` may come back as `0.00001`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.bytes_text import text_of_bytes
from airflow_parallel_apply.pipeline.encode.columns.parse import has_not_finite, not_finite_texts

_UTC: Final = "+00"


def texts(values: pa.Array) -> pa.StringArray:
    """The texts of typed values; null of null. Inverse of `parse`."""
    for is_such, text in _TEXT:
        if is_such(values.type):
            return text(values)
    return values.cast(pa.string())


def float_texts(values: pa.FloatingPointArray) -> pa.StringArray:
    """The shortest text of each number; NaN, Infinity and -Infinity by these names."""
    written = values.cast(pa.string())
    return pc.coalesce(not_finite_texts(values), written) if has_not_finite(values) else written


def decimal_texts(values: pa.Decimal128Array) -> pa.StringArray:
    """All digits of the scale, and never an exponent, which Arrow's own texts of small numbers have."""
    scale = values.type.scale
    if scale == 0:
        return values.cast(pa.string())
    unscaled = pa.Array.from_buffers(
        pa.decimal128(values.type.precision, 0), len(values), values.buffers(), offset=values.offset
    ).cast(pa.string())
    is_negative = pc.starts_with(unscaled, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(unscaled, "-"), scale + 1, "0")
    whole, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(
        pc.if_else(is_negative, "-", ""), whole, pc.binary_join_element_wise(".", fraction, ""), ""
    )


def _boolean_texts(values: pa.BooleanArray) -> pa.StringArray:
    return pc.if_else(values, "t", "f")


def _timestamp_texts(values: pa.TimestampArray) -> pa.StringArray:
    written = _trimmed(values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string()))
    return pc.binary_join_element_wise(written, _UTC, "") if values.type.tz is not None else written


def _time_texts(values: pa.Time64Array) -> pa.StringArray:
    return _trimmed(values.cast(pa.string()))


def _trimmed(written: pa.StringArray) -> pa.StringArray:
    """Without the zeros that end six digits of a second, and the point that then ends it."""
    return pc.utf8_rtrim(pc.utf8_rtrim(written, "0"), ".")


_TEXT: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.StringArray]], ...]] = (
    (pa.types.is_boolean, _boolean_texts),
    (pa.types.is_floating, float_texts),
    (pa.types.is_decimal, decimal_texts),
    (pa.types.is_binary, text_of_bytes),
    (pa.types.is_timestamp, _timestamp_texts),
    (pa.types.is_time64, _time_texts),
)

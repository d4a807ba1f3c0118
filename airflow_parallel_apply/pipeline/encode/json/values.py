"""JSON values, a column at a time.

| type | JSON |
|---|---|
| boolean, integers, floats | `true`, `1`, `0.1`; what is not finite as `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimal | a string, with all digits: readers take numbers for floats |
| text | a string |
| bytes | a string in Base64 |
| date, time, timestamp, instant | ISO 8601: `"2026-01-31"`, `"23:59:59.5"`, `"2026-01-31T23:59:59.5"`, and with `Z` |
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.bytes_text import content
from airflow_parallel_apply.pipeline.encode.columns.parse import has_not_finite, not_finite_texts
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.json.base64 import base64_texts

NULL: Final = "null"

_QUOTE: Final = '"'
_FIRST_PRINTABLE: Final = 32
_BACKSLASH: Final = "\\"
_ESCAPES: Final = {
    letter: json.dumps(letter)[1:-1] for letter in (_BACKSLASH, _QUOTE, *map(chr, range(_FIRST_PRINTABLE)))
}
"""Each by what stands for it. The backslash first: the others bring backslashes in."""


def json_values(column: pa.Array) -> pa.StringArray:
    """The JSON text of each value; `null` of null."""
    found = _bare(column)
    return pc.fill_null(found, NULL) if found.null_count else found


def quoted(values: pa.StringArray) -> pa.StringArray:
    """JSON strings of texts; null of null."""
    return pc.binary_join_element_wise(_QUOTE, _escaped(values), _QUOTE, "")


def _bare(column: pa.Array) -> pa.StringArray:
    kind = column.type
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false")
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        written = column.cast(pa.string())
        # Readers take a number without a point for an integer, of which there is one zero.
        written = pc.if_else(pc.equal(written, "-0"), "-0.0", written)
        return pc.coalesce(quoted(not_finite_texts(column)), written) if has_not_finite(column) else written
    if pa.types.is_string(kind):
        return quoted(column)
    if pa.types.is_binary(kind):
        return _in_quotes(base64_texts(column))
    if pa.types.is_timestamp(kind):
        moments = column.cast(pa.int64()).cast(pa.timestamp("us"))
        written = pc.replace_substring(texts(moments), " ", "T")
        return _in_quotes(written, "Z" if kind.tz else "")
    return _in_quotes(texts(column))


def _in_quotes(values: pa.StringArray, suffix: str = "") -> pa.StringArray:
    return pc.binary_join_element_wise(_QUOTE, values, suffix + _QUOTE, "")


def _escaped(values: pa.StringArray) -> pa.StringArray:
    """Most columns have nothing to escape, and one look at their bytes says so."""
    _, data = content(values)
    strange = data[(data < _FIRST_PRINTABLE) | (data == ord(_QUOTE)) | (data == ord(_BACKSLASH))]
    if len(strange):
        found = np.bincount(strange)
        for letter, escape in _ESCAPES.items():
            if ord(letter) < len(found) and found[ord(letter)]:
                values = pc.replace_substring(values, letter, escape)
    return values

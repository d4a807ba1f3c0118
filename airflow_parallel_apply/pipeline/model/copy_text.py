r"""A row's values as one line: PostgreSQL's COPY text format, without the newline.

Source: the manual's page on COPY: tab between values, `\N` for NULL, and a backslash before the letters for backslash,
tab, newline and carriage return inside a value. So a value of any type stays what it is, a log's one column holds rows
of any width, which Spark carries as one value instead of a list, and what COPY takes is there already.

No column is the empty line, as one column with an empty text is: who reads a line knows its relation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

SEPARATOR: Final = "\t"
NULL: Final = r"\N"
ESCAPES: Final = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))
"""Plain and escaped. The backslash first: the others bring backslashes in."""

OF_A_SERVER: Final = (*ESCAPES, ("\b", r"\b"), ("\f", r"\f"), ("\v", r"\v"))
"""Those that COPY of a server writes: more than a line of the log needs."""

PLACEHOLDER: Final = "\0"
"""No text of PostgreSQL has it: it stands for a backslash until the other escapes are undone."""


def line(values: Iterable[str | None]) -> str:
    """One row's values."""
    return SEPARATOR.join(NULL if value is None else _escaped_text(value) for value in values)


def values_of(text: str) -> list[str | None]:
    """Inverse of `line`, of a row that has columns."""
    return [None if value == NULL else _plain_text(value) for value in text.split(SEPARATOR)]


def lines(values: pa.StringArray, offsets: pa.Array) -> pa.StringArray:
    """The values of row n are those from offset n to offset n + 1 (int32); null is SQL NULL."""
    escaped = _escaped(values)
    filled = pc.fill_null(escaped, NULL) if escaped.null_count else escaped
    return pc.binary_join(pa.ListArray.from_arrays(offsets, filled), SEPARATOR)


def lists(texts: pa.StringArray) -> pa.ListArray:
    """Inverse of `lines`, as a list of each row's values."""
    found = pc.split_pattern(texts, SEPARATOR)
    values = found.flatten()
    values = pc.if_else(pc.equal(values, NULL), pa.scalar(None, pa.string()), values)
    offsets = found.offsets
    return pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), plain(values), mask=texts.is_null())


def line_widths(texts: pa.StringArray) -> pa.Array:
    """The number of values of each line (int32), if it has any."""
    return pc.add(pc.count_substring(texts, SEPARATOR), 1)


def _escaped(values: pa.StringArray) -> pa.StringArray:
    """Most batches have nothing to escape, and memchr says so faster than Arrow's kernels rewrite."""
    data = values.buffers()[2]
    if data is not None:
        content = data.to_pybytes()
        for character, escaped in ESCAPES:
            if character.encode() in content:
                values = pc.replace_substring(values, character, escaped)
    return values


def plain(values: pa.StringArray) -> pa.StringArray:
    """Undo the escapes of values, whether a server wrote them or the log. NULL is not known here."""
    data = values.buffers()[2]
    if data is None or b"\\" not in data.to_pybytes():
        return values
    (backslash, escaped_backslash), *others = OF_A_SERVER
    values = pc.replace_substring(values, escaped_backslash, PLACEHOLDER)
    for character, escaped in others:
        values = pc.replace_substring(values, escaped, character)
    return pc.replace_substring(values, PLACEHOLDER, backslash)


def _escaped_text(value: str) -> str:
    for character, escaped in ESCAPES:
        value = value.replace(character, escaped)
    return value


def _plain_text(value: str) -> str:
    if "\\" not in value:
        return value
    (backslash, escaped_backslash), *others = OF_A_SERVER
    value = value.replace(escaped_backslash, PLACEHOLDER)
    for character, escaped in others:
        value = value.replace(escaped, character)
    return value.replace(PLACEHOLDER, backslash)

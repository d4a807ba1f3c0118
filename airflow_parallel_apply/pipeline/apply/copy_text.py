r"""PostgreSQL's COPY text format, built from Arrow columns without a loop over rows.

Source: the manual's page on COPY: tab between columns, newline after rows, `\N` for NULL, and a backslash before the
letters for backslash, tab, newline and carriage return inside a value.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.reduce import NetChanges

_ESCAPES: Final = ((b"\\", "\\", "\\\\"), (b"\t", "\t", "\\t"), (b"\n", "\n", "\\n"), (b"\r", "\r", "\\r"))
"""The backslash first: the others bring backslashes in."""

_NULL: Final = "\\N"


def copy_text(changes: NetChanges, *, with_unsent: bool) -> memoryview:
    """One line for each net change: operation, the values in order and, with `with_unsent`, the bitmap or NULL."""
    values = changes.values
    texts = _escaped(values.flatten())
    offsets = values.offsets
    if values.offset or offsets[0].as_py():
        offsets = pc.subtract(offsets, offsets[0])
    lines = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), "\t")
    operations = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(1), len(lines), [None, pa.py_buffer(changes.operations)]
    ).cast(pa.binary())
    operations = operations.view(pa.string())
    parts: list[object] = [operations, "\t", lines]
    if with_unsent:
        bitmaps = changes.unsent if changes.unsent is not None else pa.nulls(len(lines), pa.string())
        parts += ["\t", pc.fill_null(bitmaps, _NULL)]
    text = pc.binary_join_element_wise(*parts, "\n", "")
    first, last = text.offset, text.offset + len(text)
    bounds = memoryview(text.buffers()[1]).cast("i")
    return memoryview(text.buffers()[2])[bounds[first] : bounds[last]]


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Most batches have nothing to escape, and memchr says so faster than Arrow's kernels rewrite."""
    data = texts.buffers()[2]
    if data is not None:
        content = data.to_pybytes()
        for byte, plain, escaped in _ESCAPES:
            if byte in content:
                texts = pc.replace_substring(texts, plain, escaped)
    return pc.fill_null(texts, _NULL) if texts.null_count else texts

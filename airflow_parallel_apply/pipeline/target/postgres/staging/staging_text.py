"""Makes the text that COPY takes, into staging or the table itself: the log's lines; for staging with an operation
before and, where asked for, a bitmap behind.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.net_changes import NetChanges
from airflow_parallel_apply.pipeline.model.copy_text import NULL, SEPARATOR


def staging_text(changes: NetChanges, again: Sequence[int] = (), *, with_unsent: bool) -> memoryview:
    """One line for each net change: operation, the values in order, those of the columns `again` once more and, with
    `with_unsent`, the bitmap or NULL.
    """
    operations = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(1), len(changes.values), [None, pa.py_buffer(changes.operations)]
    ).cast(pa.binary())
    parts: list[object] = [operations.view(pa.string()), SEPARATOR, changes.values]
    if again:
        lists = pc.split_pattern(changes.values, SEPARATOR)
        for index in again:
            parts += [SEPARATOR, pc.list_element(lists, index)]
    if with_unsent:
        bitmaps = changes.unsent if changes.unsent is not None else pa.nulls(len(changes.values), pa.string())
        parts += [SEPARATOR, pc.fill_null(bitmaps, NULL)]
    return _lines(parts)


def row_text(changes: NetChanges) -> memoryview:
    """One line for each insertion, as COPY takes it into the table itself: the values in order."""
    return _lines([changes.values])


def _lines(parts: Sequence[object]) -> memoryview:
    text = pc.binary_join_element_wise(*parts, "\n", "")
    first, last = text.offset, text.offset + len(text)
    bounds = memoryview(text.buffers()[1]).cast("i")
    return memoryview(text.buffers()[2])[bounds[first] : bounds[last]]

"""Rows of `COPY … TO STDOUT` as numbered cells, found without a loop over rows or values: `copy_cells`."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.copy_text import plain
from airflow_parallel_apply.pipeline.source.cells import NULL, TEXT, Cells

_TAB, _NEWLINE, _BACKSLASH, _N = (ord(letter) for letter in "\t\n\\N")
_NULL_BYTES: Final = 2


def copy_cells(text: bytes, row_count: int, width: int) -> Cells:
    """The cells of whole rows, row by row. Errors: `SourceError` unless there are so many values.

    A tab or newline that is none of a row's own separators comes escaped.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((data == _TAB) | (data == _NEWLINE)) if width else np.zeros(0, dtype=np.int64)
    if len(ends) != row_count * width:
        raise SourceError("the source sent rows of another width than their table has", op="copy")
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1] + 1])[: len(ends)]
    is_null = ends - starts == _NULL_BYTES
    at = starts[is_null]
    is_null[is_null] = (data[at] == _BACKSLASH) & (data[at + 1] == _N)
    # One array over the text, of value and separator by turns.
    offsets = np.empty(2 * len(ends) + 1, dtype=np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = starts, ends, len(data)
    texts = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))
    if text.count(b"\\") > is_null.sum():
        texts = plain(texts)
    status = np.where(is_null, np.uint8(NULL), np.uint8(TEXT)).astype(np.uint8)
    return Cells(status, texts, 2 * np.arange(len(ends), dtype=np.int64))

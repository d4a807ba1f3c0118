"""Bytes in Base64 (RFC 4648, with `=`), a whole column at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.bytes_text import content

_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)


def base64_texts(values: pa.BinaryArray) -> pa.StringArray:
    """The text of each value; null of null."""
    offsets, data = content(pc.fill_null(values, b""))
    lengths = np.diff(offsets)
    groups = -(-lengths // 3)
    ends = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(groups * 4, out=ends[1:])
    # Each value begins a group of its own, filled up with zeros.
    padded = np.zeros(int(groups.sum()) * 3, dtype=np.uint8)
    moved = np.repeat(ends[:-1] // 4 * 3 - offsets[:-1], lengths)
    padded[np.arange(len(data)) + moved] = data
    triples = padded.reshape(-1, 3).astype(np.uint32)
    bits = (triples[:, 0] << 16) | (triples[:, 1] << 8) | triples[:, 2]
    letters = _LETTERS[np.stack([(bits >> shift) & 63 for shift in (18, 12, 6, 0)], axis=1)].reshape(-1)
    missing = -lengths % 3
    last = ends[1:].astype(np.int64)
    letters[last[missing >= 1] - 1] = ord("=")
    letters[last[missing == 2] - 2] = ord("=")
    texts = pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(letters))
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts

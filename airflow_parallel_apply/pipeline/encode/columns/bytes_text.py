r"""Bytes and their text: `\x` and two hexadecimal digits for each. A whole column at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_NO_DIGIT: Final = 255
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_VALUE_OF: Final = np.full(256, _NO_DIGIT, dtype=np.uint8)
_VALUE_OF[_DIGITS] = np.arange(16)
_VALUE_OF[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)
_PREFIX: Final = 2


def bytes_of(texts: pa.StringArray) -> pa.BinaryArray:
    """The bytes that texts stand for; null of null. `ValueError` for a text of another form."""
    offsets, data = content(pc.fill_null(texts, r"\x"))
    starts = offsets[:-1]
    lengths = np.diff(offsets)
    if (lengths < _PREFIX).any() or (lengths & 1).any():
        raise ValueError("a text that is not of hexadecimal digits")
    if (data[starts] != ord("\\")).any() or (data[starts + 1] != ord("x")).any():
        raise ValueError("a text that does not begin with \\x")
    is_digit = np.ones(len(data), dtype=np.bool_)
    is_digit[starts] = is_digit[starts + 1] = False
    digits = _VALUE_OF[data[is_digit]]
    if (digits == _NO_DIGIT).any():
        raise ValueError("a text that is not of hexadecimal digits")
    found = (digits[0::2] << 4) | digits[1::2]
    ends = (offsets - _PREFIX * np.arange(len(offsets), dtype=offsets.dtype)) // 2
    values = pa.BinaryArray.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(found)])
    return pc.if_else(texts.is_valid(), values, None) if texts.null_count else values


def text_of_bytes(values: pa.BinaryArray) -> pa.StringArray:
    """Inverse of `bytes_of`."""
    offsets, data = content(pc.fill_null(values, b""))
    digits = np.empty(2 * len(data), dtype=np.uint8)
    digits[0::2] = _DIGITS[data >> 4]
    digits[1::2] = _DIGITS[data & 15]
    texts = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets * 2), pa.py_buffer(digits))
    texts = pc.binary_join_element_wise(r"\x", texts, "")
    return pc.if_else(values.is_valid(), texts, None) if values.null_count else texts


def content(values: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Offsets from 0, and the bytes between the first and the last of them, of texts or bytes without nulls."""
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data

"""Fields of Avro records, a column at a time: each becomes the bytes that stand for it in every record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.avro.schema import decimal_size
from airflow_parallel_apply.pipeline.encode.avro.varint import varints

NULL_BRANCH: Final = b"\x00"
VALUE_BRANCH: Final = b"\x02"
"""Numbers of the branches of a union of null and a type."""

_DECIMAL_BYTES: Final = 16


def field_parts(column: pa.Array, *, nullable: bool) -> list[pa.BinaryArray]:
    """Arrays of bytes which, one behind the other, are the field of each record."""
    prefix = VALUE_BRANCH if nullable else b""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return _sized(column, prefix)
    for is_such, encode in _FIXED:
        if is_such(column.type):
            found = encode(column, prefix)
            break
    else:
        found = varints(_integers(column), prefix=prefix)
    return [pc.if_else(column.is_valid(), found, NULL_BRANCH) if column.null_count else found]


def _sized(column: pa.Array, prefix: bytes) -> list[pa.BinaryArray]:
    """Texts and bytes come behind their length."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    heads = varints(lengths, prefix=prefix)
    contents = column.cast(pa.binary())
    if column.null_count:
        heads = pc.if_else(column.is_valid(), heads, NULL_BRANCH)
        contents = pc.fill_null(contents, b"")
    return [heads, contents]


def _integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Numbers; of dates days, of times microseconds. Anything where the column has a null."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    numbers: npt.NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


def _booleans(column: pa.Array, prefix: bytes) -> pa.BinaryArray:
    return pc.if_else(pc.fill_null(column, False), pa.scalar(prefix + b"\x01"), pa.scalar(prefix + b"\x00"))


def _floats(column: pa.Array, prefix: bytes) -> pa.BinaryArray:
    numbers = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
    return _rows(numbers.astype(numbers.dtype.newbyteorder("<")).view(np.uint8).reshape(len(numbers), -1), prefix)


def _decimals(column: pa.Array, prefix: bytes) -> pa.BinaryArray:
    """As fixed bytes, the most significant first; under a null there may be any."""
    data = np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(-1, _DECIMAL_BYTES)
    size = decimal_size(column.type.precision)
    return _rows(data[column.offset : column.offset + len(column), size - 1 :: -1], prefix)


def _rows(values: npt.NDArray[np.uint8], prefix: bytes) -> pa.BinaryArray:
    """Each row of a matrix behind the prefix."""
    count, width = values.shape[0], values.shape[1] + len(prefix)
    data = np.empty((count, width), dtype=np.uint8)
    data[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    data[:, len(prefix) :] = values
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))]
    )


_FIXED: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, bytes], pa.BinaryArray]], ...]] = (
    (pa.types.is_boolean, _booleans),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
)

"""Avro's numbers of variable length, a whole column at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_BITS: Final = 7
_MORE: Final = 0x80
_MOST: Final = 10
"""Bytes of a number of 64 bits, at most."""

_LIMITS: Final = np.array([1 << (_BITS * count) for count in range(1, _MOST)], dtype=np.uint64)
"""Below each of them a number has one byte less."""


def varints(numbers: npt.NDArray[np.int64], *, prefix: bytes = b"") -> pa.BinaryArray:
    """The bytes of each number, behind a prefix that all have."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    widest = int(np.searchsorted(_LIMITS, zigzag.max(), side="right")) + 1 if len(zigzag) else 1
    lengths = np.full(len(numbers), 1 + len(prefix), dtype=np.int32)
    for limit in _LIMITS[: widest - 1]:
        lengths += zigzag >= limit
    offsets = np.zeros(len(numbers) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    at = offsets[:-1].astype(np.int64)
    for byte in prefix:
        data[at] = byte
        at += 1
    rest = zigzag
    while True:
        low = (rest & np.uint64(_MORE - 1)).astype(np.uint8)
        more = rest >= _MORE
        data[at] = low | (more.view(np.uint8) << _BITS)
        if not more.any():
            break
        if more.all():
            rest, at = rest >> np.uint64(_BITS), at + 1
        else:
            rest, at = rest[more] >> np.uint64(_BITS), at[more] + 1
    return pa.BinaryArray.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def varint(number: int) -> bytes:
    """The bytes of one number."""
    found: bytes = varints(np.array([number], dtype=np.int64))[0].as_py()
    return found

"""Pieces of a batch, small enough for arrays whose offsets have 32 bits; and an array's bytes as one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

PIECE_ROWS: Final = 16_384
PIECE_BYTES: Final = 16 * 2**20


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `PIECE_ROWS` at most, and fewer where they are wide."""
    for batch in batches:
        if batch.num_rows:
            rows = min(PIECE_ROWS, max(1, PIECE_BYTES * batch.num_rows // max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def joined(values: pa.BinaryArray | pa.StringArray) -> memoryview:
    """All bytes of an array without nulls, one behind the other, without a copy."""
    _, offset_buffer, data = values.buffers()
    if data is None:
        return memoryview(b"")
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    return memoryview(data)[int(offsets[values.offset]) : int(offsets[values.offset + len(values)])]

"""The column values of `pgoutput` tuples, found without a loop over rows or fields: `TupleCells`.

Tuples of equal shape are walked side by side, one column at a time, with a cursor for each. Cells are numbered in the
order of the bytes, so that one Arrow array over the received buffer, of value and gap by turns, holds them all.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.source.cells import NULL, TEXT, UNSENT, Bytes, Cells, Numbers

_VALUE_HEAD: Final = 5
"""Status and length before a value's bytes."""


class Wire:
    """Messages of a batch: one buffer, and where each message begins and ends."""

    def __init__(self, messages: pa.BinaryArray) -> None:
        whole = np.frombuffer(messages.buffers()[1], dtype=np.int32)
        offsets: Numbers = whole[messages.offset : messages.offset + len(messages) + 1].astype(np.int64)
        buffer = messages.buffers()[2]
        self.data: Bytes = np.frombuffer(buffer, dtype=np.uint8)[: int(offsets[-1])]
        self.starts: Numbers = offsets[:-1]
        self.ends: Numbers = offsets[1:]

    def __len__(self) -> int:
        return len(self.starts)

    def message(self, index: int) -> bytes:
        """One message's bytes."""
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def numbers(self, at: Numbers, dtype: str) -> Numbers:
        """Big-endian integers that begin at these bytes, which need not be aligned."""
        size = np.dtype(dtype).itemsize
        if not len(at):
            return np.zeros(0, dtype=np.int64)
        view: npt.NDArray[Any] = np.ndarray(
            shape=(len(self.data) - size + 1,), dtype=dtype, buffer=self.data, strides=(1,)
        )
        return view[at].astype(np.int64)


class TupleCells:
    """The cells of a batch: `add` every tuple, then ask for `cells`."""

    def __init__(self, wire: Wire, count: int) -> None:
        self._wire = wire
        self._status = np.full(count, NULL, dtype=np.uint8)
        self._start = np.zeros(count, dtype=np.int64)
        self._length = np.zeros(count, dtype=np.int64)

    def add(self, cursor: Numbers, first_cell: Numbers, width: int) -> Numbers:
        """Walk tuples of one width that begin at `cursor`, with cells numbered from `first_cell`. Returns their ends.

        Errors: `SourceError` when a tuple has another width than its relation, or a value in binary.
        """
        wire = self._wire
        if not (wire.numbers(cursor, ">i2") == width).all():
            raise SourceError("pgoutput sent a row of another width than its table", op="capture")
        cursor = cursor + 2
        for column in range(width):
            cell = first_cell + column
            status = wire.data[cursor]
            is_text = status == TEXT
            if is_text.all():
                length = wire.numbers(cursor + 1, ">i4")
                start = cursor + _VALUE_HEAD
            else:
                if not (is_text | (status == NULL) | (status == UNSENT)).all():
                    raise SourceError("pgoutput sent a value in an unknown form", op="capture")
                length = np.zeros(len(cursor), dtype=np.int64)
                length[is_text] = wire.numbers(cursor[is_text] + 1, ">i4")
                start = cursor + np.where(is_text, _VALUE_HEAD, 1)
            self._status[cell] = status
            self._start[cell] = start
            self._length[cell] = length
            cursor = start + length
        return cursor

    def cells(self) -> Cells:
        """All of them."""
        offsets = np.empty(2 * len(self._start) + 1, dtype=np.int32)
        offsets[0:-1:2] = self._start
        offsets[1::2] = self._start + self._length
        offsets[-1] = len(self._wire.data)
        texts = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(self._wire.data))
        return Cells(self._status, texts, 2 * np.arange(len(self._start), dtype=np.int64))

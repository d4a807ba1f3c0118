"""The column values of `pgoutput` tuples, found without a loop over rows or fields.

A *cell* is one column of one tuple in a batch of messages: a status (text, null, unsent) and the place of its bytes.
Tuples of equal shape are walked side by side, one column at a time, with a cursor for each. Cells are numbered in the
order of the bytes, so that one Arrow array over the received buffer, of value and gap by turns, holds them all, and a
`take` of any cells in any order is one pass in C++.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import SourceError

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

TEXT: Final = ord("t")
NULL: Final = ord("n")
UNSENT: Final = ord("u")
NO_CELL: Final = -1
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


class Cells:
    """All cells of a batch. `add` every tuple, then read."""

    def __init__(self, wire: Wire, count: int) -> None:
        self._wire = wire
        self._status = np.full(count, NULL, dtype=np.uint8)
        self._start = np.zeros(count, dtype=np.int64)
        self._length = np.zeros(count, dtype=np.int64)
        self._source = np.arange(count, dtype=np.int64)
        self._texts: pa.StringArray | None = None

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

    def add_literals(self, texts: list[bytes]) -> Numbers:
        """Append values that the wire does not hold as cells. Returns their numbers. Once, after every `add`."""
        data = self._wire.data
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        starts = len(data) + np.cumsum(lengths) - lengths
        first = len(self._status)
        self._wire.data = np.concatenate([data, np.frombuffer(b"".join(texts), dtype=np.uint8)])
        self._status = np.concatenate([self._status, np.full(len(texts), TEXT, dtype=np.uint8)])
        self._start = np.concatenate([self._start, starts])
        self._length = np.concatenate([self._length, lengths])
        added = np.arange(first, first + len(texts), dtype=np.int64)
        self._source = np.concatenate([self._source, added])
        self._texts = None
        return added

    def fill_unsent(self, new: Numbers, old: Numbers) -> None:
        """Where a `new` cell was not sent and the `old` one was, the old one's value stands for it."""
        absent = (self._status[new] == UNSENT) & (self._status[old] != UNSENT)
        self._source[new[absent]] = old[absent]

    def status(self, cells: Numbers) -> Bytes:
        """Of cells, after filling; NULL for `NO_CELL`."""
        found = self._status[self._source[cells]]
        return np.where(cells == NO_CELL, np.uint8(NULL), found)

    def differ(self, left: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
        """Whether the values of two cells are different texts; an unsent one differs from nothing."""
        left_status, right_status = self.status(left), self.status(right)
        known = (left_status != UNSENT) & (right_status != UNSENT)
        unlike = left_status != right_status
        texts_unlike: pa.BooleanArray = pc.not_equal(self.take(left), self.take(right))
        found: npt.NDArray[np.bool_] = texts_unlike.fill_null(False).to_numpy(zero_copy_only=False)
        different: npt.NDArray[np.bool_] = known & (unlike | found)
        return different

    def take(self, cells: Numbers) -> pa.StringArray:
        """The texts of cells in any order; null for SQL NULL, unsent and `NO_CELL`."""
        status = self.status(cells)
        absent = status != TEXT
        indexes = 2 * self._source[cells]
        return self._all().take(pa.array(indexes, mask=absent if absent.any() else None))

    def _all(self) -> pa.StringArray:
        if self._texts is None:
            offsets = np.empty(2 * len(self._start) + 1, dtype=np.int32)
            offsets[0:-1:2] = self._start
            offsets[1::2] = self._start + self._length
            offsets[-1] = len(self._wire.data)
            self._texts = pa.StringArray.from_buffers(
                len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(self._wire.data)
            )
        return self._texts

"""The values of a batch of changes, numbered: `Cells`.

A *cell* is one column of one old or new row: a status (text, null, unsent) and its text. Rows of the log are made of
cells' numbers, by column, and an Arrow `take` of any cells in any order brings their texts in one pass in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

TEXT: Final = ord("t")
NULL: Final = ord("n")
UNSENT: Final = ord("u")
NO_CELL: Final = -1


class Cells:
    """Cells 0 … n-1. `status`: TEXT, NULL or UNSENT of each; `texts` has its text at its place in `places`."""

    def __init__(self, status: Bytes, texts: pa.StringArray, places: Numbers) -> None:
        self._status = status
        self._texts = texts
        self._places = places

    def add(self, texts: Sequence[bytes]) -> Numbers:
        """Append values as cells. Returns their numbers."""
        first, count = len(self._status), len(texts)
        self._status = np.concatenate([self._status, np.full(count, TEXT, dtype=np.uint8)])
        self._places = np.concatenate([self._places, len(self._texts) + np.arange(count, dtype=np.int64)])
        self._texts = pa.concat_arrays([self._texts, pa.array(texts, pa.binary()).view(pa.string())])
        return np.arange(first, first + count, dtype=np.int64)

    def fill_unsent(self, new: Numbers, old: Numbers) -> None:
        """Give each `new` cell that was not sent the value of its `old` one, if that was sent."""
        absent = (self._status[new] == UNSENT) & (self._status[old] != UNSENT)
        self._status[new[absent]] = self._status[old[absent]]
        self._places[new[absent]] = self._places[old[absent]]

    def status(self, cells: Numbers) -> Bytes:
        """The status of cells, after filling; NULL for `NO_CELL`."""
        return np.where(cells == NO_CELL, np.uint8(NULL), self._status[cells])

    def differ(self, left: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
        """True where the values of two cells are different texts; an unsent one differs from nothing."""
        left_status, right_status = self.status(left), self.status(right)
        known = (left_status != UNSENT) & (right_status != UNSENT)
        unlike = left_status != right_status
        texts_unlike: pa.BooleanArray = pc.not_equal(self.take(left), self.take(right))
        found: npt.NDArray[np.bool_] = texts_unlike.fill_null(False).to_numpy(zero_copy_only=False)
        different: npt.NDArray[np.bool_] = known & (unlike | found)
        return different

    def take(self, cells: Numbers) -> pa.StringArray:
        """The texts of cells in any order; null for SQL NULL, unsent and `NO_CELL`."""
        absent = self.status(cells) != TEXT
        return self._texts.take(pa.array(self._places[cells], mask=absent if absent.any() else None))

"""Net changes as columns: what a loader stages, and what operations mean for a key's row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.model.change import Operation

Codes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

INSERT: Final = ord(Operation.INSERT)
UPDATE: Final = ord(Operation.UPDATE)
DELETE: Final = ord(Operation.DELETE)

STARTS: Final = (INSERT, ord(Operation.KEY_ARRIVED))
"""The row did not exist before these, and they send every column."""
ENDS: Final = (DELETE, ord(Operation.KEY_LEFT))
"""The row does not exist after these."""


def _table_of(codes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, dtype=np.bool_)
    table[list(codes)] = True
    return table


AS_IMAGE: Final = np.arange(256, dtype=np.uint8)
"""Maps a change of a multiset to its effect on the row that it carries."""
AS_IMAGE[[ord(Operation.KEY_ARRIVED), ord(Operation.KEY_LEFT)]] = (INSERT, DELETE)

IS_ROW: Final = _table_of((*STARTS, UPDATE, *ENDS))
PRESENT_BEFORE: Final = _table_of((UPDATE, *ENDS))
PRESENT_AFTER: Final = _table_of((*STARTS, UPDATE))
NET: Final = np.array([[0, INSERT], [DELETE, UPDATE]], dtype=np.uint8)
"""By presence before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetChanges:
    """Net changes of distinct keys, in the order in which the keys came; of a multiset of rows, all changes.

    `operations`: INSERT, UPDATE or DELETE. `values`: a line of all columns; of a delete, the key's only, or of a
    multiset the whole row.
    `seqnos`: of each key's last change. `unsent`: one character a column, "1" where the old row's value stays; None
    when all was sent.
    """

    operations: Codes
    values: pa.StringArray
    seqnos: Numbers
    unsent: pa.StringArray | None

    def where(self, chosen: npt.NDArray[np.bool_]) -> NetChanges:
        """The chosen ones, in their order."""
        picked = pa.array(chosen)
        return NetChanges(
            operations=self.operations[chosen],
            values=self.values.filter(picked),
            seqnos=self.seqnos[chosen],
            unsent=None if self.unsent is None else self.unsent.filter(picked),
        )

    def count(self, operation: int) -> int:
        """The number of changes of this operation."""
        return int(np.count_nonzero(self.operations == operation))


def codes_of(operations: pa.Array) -> Codes:
    """One letter a row, as bytes."""
    if not pa.types.is_string(operations.type):
        operations = operations.cast(pa.string())
    offsets = np.frombuffer(operations.buffers()[1], dtype=np.int32)[
        operations.offset : operations.offset + len(operations) + 1
    ]
    if operations.null_count or offsets[-1] - offsets[0] != len(operations):
        raise LogError("an operation that is not one letter", hint="The log was not written by this version.")
    return np.frombuffer(operations.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]


def numbers_of(column: pa.Array) -> Numbers:
    """A column of 64-bit integers, without a copy where that is possible."""
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers

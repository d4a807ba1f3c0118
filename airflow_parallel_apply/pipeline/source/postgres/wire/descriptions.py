"""Descriptions of tables in a batch of `pgoutput` messages: which change each of them comes with.

The server describes a table right before the first change that needs it. Where a partition's rows come as those of its
root, it describes the root first and then the partition: so a description tells where the rows lie.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import parse_truncate

_DESCRIBING: Final = b"RY"
_TRUNCATE: Final = ord("T")
_HAS_TABLES: Final = np.isin(np.arange(256), [ord(letter) for letter in "IUDT"])


class Together:
    """Keeps the descriptions at a batch's end for the batch that has their change. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: pa.BinaryArray | None = None

    def whole(self, messages: pa.BinaryArray) -> pa.BinaryArray:
        """The messages that can be decoded now."""
        if self._waiting is not None:
            messages = pa.concat_arrays([self._waiting, messages])
        end = len(messages)
        while end and messages[end - 1].as_py()[:1] in _DESCRIBING:
            end -= 1
        self._waiting = messages.slice(end) if end < len(messages) else None
        return messages.slice(0, end)


def described_for(wire: Wire, kinds: npt.NDArray[np.uint8], index: int) -> tuple[int, ...]:
    """The oids of the tables that the change behind a description is of; none where there is none."""
    behind = np.flatnonzero(_HAS_TABLES[kinds[index:]])
    if not len(behind):
        return ()
    change = index + int(behind[0])
    if kinds[change] == _TRUNCATE:
        return parse_truncate(wire.message(change)).oids
    return (int(wire.numbers(wire.starts[change : change + 1] + 1, ">u4")[0]),)

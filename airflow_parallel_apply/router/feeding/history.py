"""The history that a router has read, as marks: those of another history with the same seqnos differ."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.mark import Mark


@dataclass(frozen=True, slots=True)
class _Part:
    first_seqno: int
    end_offsets: npt.NDArray[np.int64]
    commit_times: npt.NDArray[np.int64]

    @property
    def last_seqno(self) -> int:
        return self.first_seqno + len(self.end_offsets) - 1


class ReadHistory:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: list[_Part] = []

    def add(self, transactions: pa.Table) -> None:
        """Transactions whose rows were read, in the order of their seqnos."""
        if transactions.num_rows:
            seqnos = _numbers(transactions, "seqno")
            part = _Part(int(seqnos[0]), _numbers(transactions, "end_offset"), _numbers(transactions, "commit_time"))
            with self._lock:
                self._parts.append(part)

    def trim(self, seqno: int) -> None:
        """Forget what lies at or below a seqno, as far as that is a whole part."""
        with self._lock:
            self._parts = [part for part in self._parts if part.last_seqno > seqno]

    def differs(self, seqno: int, mark: Mark) -> bool:
        """True if another transaction was read under this seqno; False where none was read."""
        with self._lock:
            parts = [part for part in self._parts if part.first_seqno <= seqno <= part.last_seqno]
        return any(
            Mark(int(part.end_offsets[place]), int(part.commit_times[place])) != mark
            for part in parts
            for place in (seqno - part.first_seqno,)
        )


def _numbers(transactions: pa.Table, column: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = transactions.column(column).cast(pa.int64()).to_numpy()
    return found

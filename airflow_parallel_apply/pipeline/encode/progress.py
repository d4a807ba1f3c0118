"""Counts what is encoded: safe for threads, and right after a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """`rows` and `bytes_` that are done or under way, of `total_rows` where that is known."""

    rows: int = 0
    bytes_: int = 0
    total_rows: int | None = None

    def __str__(self) -> str:
        of = f" of {self.total_rows:,}" if self.total_rows is not None else ""
        return f"{self.rows:,}{of} rows, {self.bytes_ / 2**20:,.1f} MB"

    @property
    def fraction(self) -> float:
        """0 to 1; 0 where the total is not known."""
        return min(self.rows / self.total_rows, 1.0) if self.total_rows else 0.0


class Progress:
    """The count of one export, told to `report` at each change, by one thread at a time."""

    def __init__(self, report: Callable[[Encoded], None] | None = None, *, total_rows: int | None = None) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._rows = 0
        self._bytes = 0
        self._total = total_rows

    @property
    def now(self) -> Encoded:
        with self._lock:
            return Encoded(rows=self._rows, bytes_=self._bytes, total_rows=self._total)

    @contextmanager
    def attempt(self) -> Iterator[Callable[[int, int], None]]:
        """One attempt at some rows: gives a function that counts rows and bytes. What an attempt that fails has counted
        is taken back, so that the next one counts it anew.
        """
        rows = bytes_ = 0

        def count(more_rows: int, more_bytes: int) -> None:
            nonlocal rows, bytes_
            rows, bytes_ = rows + more_rows, bytes_ + more_bytes
            self._add(more_rows, more_bytes)

        try:
            yield count
        except BaseException:
            self._add(-rows, -bytes_)
            raise

    def _add(self, rows: int, bytes_: int) -> None:
        with self._lock:
            self._rows += rows
            self._bytes += bytes_
            found = Encoded(rows=self._rows, bytes_=self._bytes, total_rows=self._total)
            if self._report is not None:
                self._report(found)

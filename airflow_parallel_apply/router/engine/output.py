"""An output of the engine: what streams and windows have in common.

Two sides meet here. The *router's* thread puts pieces, marks the end and looks whether the output is blocked; nothing
else calls those methods. *Consumers* read, drain and close, from threads of their own. What both write is guarded by
the condition; what one side alone writes, the other may read without it, a little late.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from airflow_parallel_apply.router.engine.container import Container
from airflow_parallel_apply.router.engine.items import Piece
from airflow_parallel_apply.router.engine.states import DEMANDS, Demand, moved
from airflow_parallel_apply.router.engine.stats import OutputStats


class Output(ABC):
    """`container`: None where nothing is spilled. `on_change`: called without a lock whenever a consumer has taken
    something, begins to wait, or wants no more.
    """

    def __init__(self, number: int, *, container: Container | None, on_change: Callable[[Output], None]) -> None:
        self.number = number
        self._container = container
        self._on_change = on_change
        self._condition = threading.Condition()
        self._demand = Demand.NEEDS_MORE
        self._is_over = False
        self._error: BaseException | None = None
        self._waiting_readers = 0
        self._discarded_rows = 0
        # The router's side alone writes what follows.
        self._rows = 0
        self._byte_count = 0
        self._dropped_rows = 0
        self._last_bytes = 0
        self._high_memory_bytes = 0
        self._blocked_since: float | None = None
        self._blocked_seconds = 0.0
        self.resume_bytes = 0
        """The bytes that may wait in memory before an engine that stands still goes on."""

    @property
    def demand(self) -> Demand:
        """The consumer's demand."""
        return self._demand

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """The bytes of rows in memory that nobody has read yet."""

    @property
    @abstractmethod
    def spilled_bytes(self) -> int:
        """The bytes of rows on disk that nobody has read yet, as they were in memory."""

    # The router's side.

    def put(self, piece: Piece, *, is_full: bool = False) -> None:
        """Add the next piece. `is_full`: the memory is used up, so that it has to be where it can be spilled."""
        rows = piece.tagged.batch.num_rows
        self._rows += rows
        self._byte_count += piece.nbytes
        if self._demand is not Demand.NEEDS_MORE:
            self._dropped_rows += rows
            return
        self._last_bytes = piece.nbytes
        self._keep(piece, is_full)
        self._high_memory_bytes = max(self._high_memory_bytes, self.memory_bytes)

    def spill(self, nbytes: int) -> Callable[[], None] | None:
        """Count the oldest pieces, about so many bytes of them, as spilled; None where there is none. Returns what
        writes them, for any thread; until it has, memory has them still, and readers take them from there. Errors of
        that: `SpillFull`.
        """
        if self._container is None:
            return None
        with self._condition:
            return self._spill(self._container, nbytes) if self._holds else None

    def reach(self, seqno: int) -> None:  # noqa: B027  # an output without memory of seqnos has no use for it
        """Every row at or below `seqno` has been put."""

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing follows. With an error, rows that wait are let go of, and every reader raises it, unless the consumer
        has closed. Any thread.
        """
        with self._condition:
            self._is_over = True
            if error is not None and self._error is None and self._demand is not Demand.CLOSED:
                self._error = error
                self._discarded_rows += self._discard()
                if self._container is not None:
                    self._container.close()
            self._condition.notify_all()

    def is_blocked(self, part_bytes: int) -> bool:
        """True if its memory is used up: there are spilled rows, or another piece like the last one would be above its
        part. Not while a reader waits; and one that wants no more is not blocked.
        """
        if self._waiting_readers or self._demand is not Demand.NEEDS_MORE:
            return False
        memory = self.memory_bytes
        return self.spilled_bytes > 0 or (memory > 0 and memory + self._last_bytes > part_bytes)

    def note_blocked(self, is_blocked: bool, now: float) -> None:
        """Measure the time in which it is blocked, from one look to the next."""
        if self._blocked_since is not None:
            self._blocked_seconds += now - self._blocked_since
        self._blocked_since = now if is_blocked else None

    # Any side.

    def drain(self) -> None:
        """Want no more rows, only to be told how it ends. Nothing where that is so already."""
        self._want(Demand.DRAINING)

    def close(self) -> None:
        """Want nothing any more. Nothing where that is so already."""
        self._want(Demand.CLOSED)

    def stats(self) -> OutputStats:
        """As far as it is known now."""
        return OutputStats(
            number=self.number,
            demand=self._demand,
            rows=self._rows,
            byte_count=self._byte_count,
            dropped_rows=self._dropped_rows + self._discarded_rows,
            blocked_seconds=self._blocked_seconds,
            waiting_memory_bytes=self.memory_bytes,
            waiting_disk_bytes=self.spilled_bytes,
            high_memory_bytes=self._high_memory_bytes,
            high_disk_bytes=self._container.high_disk_bytes if self._container is not None else 0,
        )

    @abstractmethod
    def _keep(self, piece: Piece, is_full: bool) -> None:
        """Hold a piece until it is read."""

    @abstractmethod
    def _spill(self, container: Container, nbytes: int) -> Callable[[], None] | None:
        """See `spill`. Called with the lock; what it returns is called without."""

    @abstractmethod
    def _discard(self) -> int:
        """Let go of what is held; returns how many rows nobody had read. Called with the lock."""

    @property
    def _holds(self) -> bool:
        """False once rows are of no use to anybody."""
        return self._demand is Demand.NEEDS_MORE and self._error is None

    def _check_error(self) -> None:
        if self._error is not None:
            # Many threads raise it: none should show the calls of another.
            raise self._error.with_traceback(None)

    def _want(self, demand: Demand) -> None:
        with self._condition:
            if demand not in DEMANDS[self._demand]:
                return
            self._demand = moved(self._demand, demand, DEMANDS)
            self._discarded_rows += self._discard()
            self._condition.notify_all()
        self._on_change(self)

    def _wait_for(self, is_there: Callable[[], bool], timeout: float | None) -> None:
        """Wait, without the lock, until the router has brought about what `is_there` asks under it. Errors:
        `TimeoutError`.
        """
        with self._condition:
            self._waiting_readers += 1
        try:
            # The engine may stand still, and this output be the one that can take rows now.
            self._on_change(self)
            with self._condition:
                if not self._condition.wait_for(is_there, timeout):
                    raise TimeoutError(f"output {self.number}: nothing came within {timeout} s")
        finally:
            with self._condition:
                self._waiting_readers -= 1

    def _wake(self) -> None:
        """Tell readers of a change. Takes the lock only where one waits."""
        if self._waiting_readers:
            with self._condition:
                self._condition.notify_all()

"""The interval guard: the router does not read on while a channel lies too far behind, in commit time.

It bounds by time what the engine bounds by bytes: how much a stop, or a failure, leaves read and not applied. It only
ever delays: after `patience`, or when a reader waits for rows that are not read yet, it lets the router go on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """`interval`: the distance that the slowest channel may lie behind; None: any. `patience`: the longest wait."""

    interval: timedelta | None = None
    patience: timedelta = timedelta(seconds=30)


class IntervalGuard:
    """Thread-safe. Commit times are the greatest up to a seqno, so a clock that went backwards makes no distance."""

    def __init__(self, limits: GuardLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._times: deque[tuple[int, datetime]] = deque()
        """Last seqno and commit time of what was read, in order; the first is that of the slowest channel."""
        self._slowest_seqno: int | None = None
        self._readers = 0
        self._is_closed = False
        self.waited_seconds = 0.0

    def wait(self, last_seqno: int, commit_time: datetime) -> None:
        """Wait until the slowest channel is near enough for rows up to this time to be read."""
        with self._changed:
            started = self._clock()
            interval = self._limits.interval
            if interval is not None:
                self._changed.wait_for(
                    lambda: self._is_closed or self._readers or self._distance(commit_time) <= interval,
                    self._limits.patience.total_seconds(),
                )
            self._times.append((last_seqno, commit_time))
            self.waited_seconds += self._clock() - started

    def passed(self, slowest_seqno: int) -> None:
        """The slowest channel that has rows is at this seqno."""
        with self._changed:
            self._slowest_seqno = slowest_seqno
            while self._times and self._times[0][0] <= slowest_seqno:
                self._times.popleft()
            self._changed.notify_all()

    def reader(self, change: int) -> None:
        """A reader begins (1) or ceases (-1) to wait for rows that are not read yet."""
        with self._changed:
            self._readers += change
            self._changed.notify_all()

    def close(self) -> None:
        """Wait no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _distance(self, commit_time: datetime) -> timedelta:
        """From the first rows that the slowest channel has not passed."""
        return commit_time - self._times[0][1] if self._times else timedelta()

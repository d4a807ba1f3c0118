"""Limits of a router's streams: how many at once, and the memory that those read from the log hold together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from airflow_parallel_apply.pipeline.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    """`memory_bytes`: of rows on their way from the log's files to callers. `max_wait`: for room; then the caller is
    told to come again. `drain`: for streams under way when the router stops. `batch_bytes`: about the size of one batch
    on the wire.
    """

    max_streams: int = 256
    memory_bytes: int = 512 * 2**20
    max_wait: timedelta = timedelta(seconds=10)
    drain: timedelta = timedelta(seconds=15)
    batch_bytes: int = 2 * 2**20

    def __post_init__(self) -> None:
        for name in ("max_streams", "memory_bytes", "batch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1")


class Room:
    """Hands out parts of a whole: places or bytes. Thread-safe. A part larger than the whole gets all of it."""

    def __init__(self, whole: int, what: str, hint: str) -> None:
        self._whole = whole
        self._what = what
        self._hint = hint
        self._changed = threading.Condition()
        self._taken = 0
        self._is_closed = False

    @property
    def taken(self) -> int:
        """The part that is handed out now."""
        return self._taken

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed

    @contextlib.contextmanager
    def take(self, part: int, patience: timedelta) -> Iterator[None]:
        """Hold a part meanwhile. Errors: `Unavailable` where it does not come free in time."""
        part = min(part, self._whole)
        with self._changed:
            is_free = self._changed.wait_for(
                lambda: self._is_closed or self._taken + part <= self._whole, patience.total_seconds()
            )
            if self._is_closed:
                raise Unavailable("the router is stopping", op="stream", hint="Ask again once it has restarted.")
            if not is_free:
                raise Unavailable(f"the router has no room: {self._what}", op="stream", hint=self._hint)
            self._taken += part
        try:
            yield
        finally:
            with self._changed:
                self._taken -= part
                self._changed.notify_all()

    def wait_empty(self, patience: timedelta) -> bool:
        """True once nothing is held; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._taken, patience.total_seconds())

    def close(self) -> None:
        """Turn away whoever waits, or comes later."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

"""The stop marker in `open`'s XCom, as a lane reads it: before a claim, at most once a second.

A read takes 10 to 25 ms and costs the API server a good part of a core at 30 a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_INTERVAL_SECONDS: Final = 1.0
_WORDS: Final = frozenset({"true", "stop", "yes", "1"})


class StopMarker:
    """Asks `read` at most once a second; a stop that was seen stays seen. One thread."""

    def __init__(self, read: Callable[[], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._next: float | None = None
        self._stop = False

    def requested(self) -> bool:
        """True if somebody asked the run to stop."""
        now = self._clock()
        if not self._stop and (self._next is None or now >= self._next):
            self._stop = means_stop(self._read())
            self._next = self._clock() + _INTERVAL_SECONDS
        return self._stop


def means_stop(value: object) -> bool:
    """`{"stop": true}`, or what a person writes in the XCom editor for it: true, "true", "stop"."""
    if isinstance(value, dict):
        value = value.get("stop")
    if isinstance(value, str):
        return value.strip().lower() in _WORDS
    return bool(value)

"""A fault that happens one time only."""

from __future__ import annotations

import threading


class Once:
    """True for the first caller, of any lane."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.happened = False

    def now(self) -> bool:
        with self._lock:
            first, self.happened = not self.happened, True
            return first

"""The clock of the memory backend: the system's, which somebody may set, made one that never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class SteadyClock:
    """Tells the time in UTC. Where the system's clock is set back, this one goes on from where it was: what has arrived
    stays there to be claimed, and a lease lasts as long as it was asked for. Where that is set forward, it follows.

    `not_before`: what it begins with at least. `system`: tells the time in UTC; `monotonic`: seconds.
    """

    def __init__(
        self,
        *,
        not_before: datetime | None = None,
        system: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._system = system
        self._monotonic = monotonic
        now = system()
        # One value, so that threads need no lock: any two readings of both clocks together are as good as others.
        self._read = (now if not_before is None else max(now, not_before), monotonic())

    def __call__(self) -> datetime:
        moment, since = self._read
        # In this order: a thread that stands still between the two must not put the time ahead for good.
        now = self._system()
        seconds = self._monotonic()
        steady = moment + timedelta(seconds=seconds - since)
        if now <= steady:
            return steady
        self._read = now, seconds
        return now

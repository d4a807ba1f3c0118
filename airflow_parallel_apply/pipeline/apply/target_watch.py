"""Watching a lane at its work, from a thread of its own: at the target it may have to wait for a lock that somebody
else holds, for as long as that takes, and it hears nothing meanwhile.

Where the lane is cancelled, what it waits for is ended. While it works, the log says now and then who keeps sessions of
the pipeline waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from airflow_parallel_apply.pipeline.apply.periodic import every
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.protocol import Target

_logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 10.0


class TargetWatch:
    """`target`: the main thread's. `beside`: one for this thread. `cancelled`: whether the lane is."""

    def __init__(self, target: Target, beside: Target, *, cancelled: Callable[[], bool]) -> None:
        self._target = target
        self._beside = beside
        self._cancelled = cancelled
        self._working_since: float | None = None
        self._looked_at = 0.0

    @contextmanager
    def watching(self) -> Iterator[Self]:
        """Around the lane."""
        with every(_POLL_SECONDS, self._look, name="target watch"):
            yield self

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around what may be ended at the target, and is not to be waited for in silence."""
        self._working_since = time.monotonic()
        try:
            yield
        finally:
            self._working_since = None

    def _look(self) -> None:
        since = self._working_since
        if since is None:
            return
        if self._cancelled():
            # Again and again: it may have been between two statements.
            self._target.cancel()
        elif time.monotonic() - max(since, self._looked_at) > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._tell()

    def _tell(self) -> None:
        try:
            for found in self._beside.held_up():
                _logger.warning("%s", found)
        except ParallelApplyError as error:
            _logger.info("who keeps the lane waiting is not known: %s", error)
        finally:
            self._beside.close()

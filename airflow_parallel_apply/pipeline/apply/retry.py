"""Transient errors are retried where they happen: bounded, with growing pauses, telling each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from airflow_parallel_apply.pipeline.errors import RetryableError
from airflow_parallel_apply.queue.model import QueueUnavailable

T = TypeVar("T")

_GIVE_UP_SECONDS = 120.0
"""A database restarts within this; what lasts longer ends the task, and Airflow's retries go on."""


def retrying(
    call: Callable[[], T],
    *,
    on_retry: Callable[[BaseException], None],
    progress: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call until it does not fail with a transient error; the last error when that takes too long.

    The time counts from the first failure, since a call may have worked for an hour before it. A failure after
    `progress` told something else than at the one before is a first one again. `clock`: seconds, monotonic.
    """
    trouble = _Trouble(progress, clock)

    def before_sleep(state: RetryCallState) -> None:
        if state.outcome is not None:
            error = state.outcome.exception()
            if error is not None:
                on_retry(error)

    return Retrying(
        retry=retry_if_exception_type((RetryableError, QueueUnavailable)),
        stop=trouble.lasts_too_long,
        wait=wait_random_exponential(multiplier=0.2, max=5.0),
        before_sleep=before_sleep,
        reraise=True,
    )(call)


class _Trouble:
    """A row of failures without progress, and when it began."""

    def __init__(self, progress: Callable[[], object], clock: Callable[[], float]) -> None:
        self._progress = progress
        self._clock = clock
        self._since: float | None = None
        self._reached: object = None

    def lasts_too_long(self, state: RetryCallState) -> bool:
        del state
        now, reached = self._clock(), self._progress()
        if self._since is None or reached != self._reached:
            self._since, self._reached = now, reached
        return now - self._since >= _GIVE_UP_SECONDS

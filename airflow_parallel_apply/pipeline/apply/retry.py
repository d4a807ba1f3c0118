"""Transient errors are retried where they happen: bounded, with growing pauses, telling each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from airflow_parallel_apply.pipeline.errors import RetryableError
from airflow_parallel_apply.queue.model import QueueUnavailable

T = TypeVar("T")

_GIVE_UP_SECONDS = 120.0
"""A database restarts within this; what lasts longer ends the task, and Airflow's retries go on."""


def retrying(call: Callable[[], T], *, on_retry: Callable[[BaseException], None]) -> T:
    """Call until it does not fail with a transient error; the last error when that takes too long."""

    def before_sleep(state: RetryCallState) -> None:
        if state.outcome is not None:
            error = state.outcome.exception()
            if error is not None:
                on_retry(error)

    return Retrying(
        retry=retry_if_exception_type((RetryableError, QueueUnavailable)),
        stop=stop_after_delay(_GIVE_UP_SECONDS),
        wait=wait_random_exponential(multiplier=0.2, max=5.0),
        before_sleep=before_sleep,
        reraise=True,
    )(call)

"""The triggers' way of waiting: look, sleep, look again, up to a deadline; some errors end a wait before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import pendulum

from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, ParallelApplyError

Found = TypeVar("Found")


async def wait_for(look: Callable[[], Found | None], *, deadline: datetime, poll_seconds: float) -> Found | None:
    """Return what `look` finds, which runs in a thread, or None if the deadline comes first.

    Errors: one that ends the wait, or the one that a look at the deadline had: a database that cannot be reached is
    asked again until then.
    """
    while True:
        trouble: ParallelApplyError | None = None
        try:
            found = await asyncio.to_thread(look)
            if found is not None:
                return found
        except ParallelApplyError as error:
            trouble = error
        late = pendulum.now("UTC") >= deadline
        if trouble is not None and (late or is_final(trouble)):
            raise trouble
        if late:
            return None
        await asyncio.sleep(poll_seconds)


def is_final(error: ParallelApplyError) -> bool:
    """True if the wait should end with this error.

    Configuration and connections were good when the task deferred, and may be good where tasks run, so those errors
    are waited out too, up to the deadline.
    """
    return isinstance(error, FatalError) and not isinstance(error, ConfigurationError)

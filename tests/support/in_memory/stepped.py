"""The product's queue, renewer and threads as actors use them: nothing waits and nothing runs beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import tenacity

from airflow_parallel_apply.pipeline.apply import channel_apply as branches_module
from airflow_parallel_apply.pipeline.apply import lane as lane_module
from airflow_parallel_apply.pipeline.apply import retry as retry_module
from airflow_parallel_apply.pipeline.apply.lease_renewer import LeaseRenewer
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.model import Change, QueueError, Task
from tests.support.in_memory.laws import Begun
from tests.support.in_memory.turns import pause


class Claims:
    """An actor's claims: what there was to be seen when it did so last, and when it proved that it is still its own.
    A task that is held after another one is claimed.
    """

    def __init__(self, *, begun: Callable[[], Begun], clock: Callable[[], datetime]) -> None:
        self._begun = begun
        self._clock = clock
        self._proved: datetime | None = None
        self.last: Begun | None = None

    @property
    def is_proved_now(self) -> bool:
        return self._proved == self._clock()

    def begin(self) -> None:
        self.last = self._begun()
        self.prove()

    def prove(self) -> None:
        self._proved = self._clock()


class Queue(MemoryQueue):
    """The product's queue; whoever would wait lets others have their turns instead."""

    def __init__(self, engine: Engine, claims: Claims | None = None) -> None:
        super().__init__(engine)
        self._claims = claims

    def claim_many(self, queues: Sequence[str], *, timeout: timedelta = timedelta(0), **options: Any) -> Any:
        pause("claim")
        found = super().claim_many(queues, timeout=timedelta(0), **options)
        if found and self._claims is not None:
            self._claims.begin()
        pause("behind claim" if found or not timeout else "idle")
        return found

    def modify(self, *, change: Sequence[Change] = (), **options: Any) -> tuple[Task, ...]:
        pause("modify")
        done = super().modify(change=change, **options)
        if self._claims is not None and any(isinstance(entry.at, timedelta) for entry in change):
            self._claims.begin()
        pause("behind modify")
        return done

    def renew(self, task: Task, **options: Any) -> Task:
        pause("renew")
        renewed = super().renew(task, **options)
        if self._claims is not None:
            self._claims.prove()
        return renewed

    def tasks(self, queue: str, **options: Any) -> tuple[Task, ...]:
        pause("tasks")
        return super().tasks(queue, **options)


class LostClaims(logging.Handler):
    """Counts what lanes say of claims that they lost."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._logger = logging.getLogger(lane_module.__name__)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "lost a claim" in record.msg

    def attach(self) -> None:
        self._logger.addHandler(self)

    def detach(self) -> None:
        self._logger.removeHandler(self)


class StillRenewer(LeaseRenewer):
    """Renews when it is told to. A renewal waits while the lane is inside an exchange, as that of a thread does."""

    is_exchanging = False

    def exchange(self, role: str, step: Callable[[Task], Task | None]) -> Task | None:
        self.is_exchanging = True
        try:
            return super().exchange(role, step)
        finally:
            self.is_exchanging = False

    def renew(self) -> None:
        if not self.is_exchanging:
            super().renew()


class AtOnce:
    """An executor whose calls are done when they are submitted."""

    def __init__(self, **options: object) -> None:
        """As `ThreadPoolExecutor`."""

    def submit(self, call: Callable[..., Any], *arguments: object) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments))
        except (ParallelApplyError, QueueError) as error:
            done.set_exception(error)
        return done

    def shutdown(self, **options: object) -> None:
        """Nothing is under way."""


def without_threads(patch: pytest.MonkeyPatch) -> None:
    """Lanes of this process stage at once, and where they would sleep others have their turns."""
    patch.setattr(branches_module, "ThreadPoolExecutor", AtOnce)
    patch.setattr(retry_module, "Retrying", partial(tenacity.Retrying, sleep=lambda seconds: pause("retry")))

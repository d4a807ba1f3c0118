"""The queue's protocol on the engine, for threads: gives values their form, waits for tasks and for the journal.

A call that returns is durable, and so is all that it saw; so is what a refused modify was refused for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

from airflow_parallel_apply.queue.arguments import from_json, to_json
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.model import (
    Change,
    Insert,
    QueueError,
    QueueStats,
    Task,
    TaskId,
    TaskRef,
    with_value,
)
from airflow_parallel_apply.queue.protocol import Queue
from airflow_parallel_apply.queue.values import replacing

_inserting: Final = replacing(Insert, "value")
_changing: Final = replacing(Change, "value")
_Result = TypeVar("_Result")


class MemoryQueue(Queue):
    """A client of an engine (its own, which vanishes with it, unless one is given). `clock` measures timeouts only, in
    seconds, monotonic. Close leaves the engine to its other clients.
    """

    def __init__(self, engine: Engine | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine or Engine()
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: set[threading.Event] = set()
        self._closed = False

    def claim_many(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        limit: int,
        timeout: timedelta = timedelta(0),
        wake: Sequence[str] = (),
    ) -> tuple[Task, ...]:
        left = self._timer(timeout)
        with self._settled():
            claimed = self._engine.claim_now(queues, claimant=claimant, lease=lease, limit=limit)
            if not claimed and left() > 0:
                claimed = self._claim_waiting(queues, claimant, lease, limit, wake, left)
        return tuple(map(_decoded, claimed))

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        """Also `ValueError`, for a call that no state of the queue could make right."""
        with self._settled():
            done = self._engine.modify(
                claimant=claimant,
                insert=[_inserting(entry, value=to_json(entry.value)) for entry in insert],
                change=[_changing(entry, value=to_json(entry.value)) for entry in change],
                delete=delete,
                depend=depend,
            )
        return tuple(map(_decoded, done))

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        with self._settled():
            renewed = self._engine.renew(task.ref, claimant=claimant, lease=lease)
        return _decoded(renewed)

    def tasks(
        self,
        queue: str,
        *,
        claimant: str | None = None,
        limit: int | None = None,
        ids: Sequence[TaskId] = (),
        after: Task | None = None,
        omit_values: bool = False,
    ) -> tuple[Task, ...]:
        with self._settled(for_reading=True):
            found = list(self._engine.listing.tasks(queue, claimant=claimant, ids=ids, after=after, limit=limit))
        return tuple(with_value(task, value=None) if omit_values else _decoded(task) for task in found)

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        self._check_open()
        return self._engine.listing.queue_stats(prefix=prefix, exact=exact, limit=limit)

    def wait_empty(self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), timeout: timedelta) -> bool:
        left = self._timer(timeout)
        with self._settled(), self._wakened() as event, self._engine.watches.watch(None, event.set) as watch:
            return self._wait(event, self._engine.empty_steps(watch, prefix, exact, left))

    def close(self) -> None:
        """Calls that wait in other threads end with `QueueError` at once."""
        with self._lock:
            self._closed = True
            for event in self._waiting:
                event.set()

    def _claim_waiting(
        self,
        queues: Sequence[str],
        claimant: str,
        lease: timedelta,
        limit: int,
        wake: Sequence[str],
        seconds_left: Callable[[], float],
    ) -> tuple[Task, ...]:
        with self._wakened() as event, self._engine.watches.watch([*queues, *wake], event.set) as watch:
            steps = self._engine.claim_steps(
                watch, queues, claimant=claimant, lease=lease, limit=limit, wake=wake, seconds_left=seconds_left
            )
            return self._wait(event, steps)

    @contextmanager
    def _settled(self, *, for_reading: bool = False) -> Iterator[None]:
        """Make durable what the block did and saw, whether it ends with a result or with an error. For reading, only as
        far as possible: what the disk refuses now can still be read.
        """
        self._check_open()
        journal = self._engine.journal
        try:
            yield
        finally:
            try:
                journal.wait(journal.position)
            except QueueError:
                if not for_reading:
                    raise

    @contextmanager
    def _wakened(self) -> Iterator[threading.Event]:
        event = threading.Event()
        with self._lock:
            self._check_open()
            self._waiting.add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._waiting.discard(event)

    def _wait(self, event: threading.Event, steps: Generator[float, None, _Result]) -> _Result:
        while True:
            self._check_open()
            event.clear()
            try:
                seconds = next(steps)
            except StopIteration as end:
                result: _Result = end.value
                return result
            # Cleared before the step, and closed may have been called in between.
            self._check_open()
            event.wait(seconds)

    def _timer(self, timeout: timedelta) -> Callable[[], float]:
        deadline = self._clock() + timeout.total_seconds()
        return lambda: deadline - self._clock()

    def _check_open(self) -> None:
        if self._closed:
            raise QueueError("this queue was closed")


def _decoded(task: Task) -> Task:
    return with_value(task, value=from_json(task.value))

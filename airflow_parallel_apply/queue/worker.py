"""A worker: claims tasks, runs a function on each, keeps the lease meanwhile, and says what became of it.

```
              returns: one modify deletes the task and does what the function asked for
 claim ─▶ run ─▶ raises: the task is freed for later, with one more attempt and the error
              ├─ raises, last attempt: to `<queue>/err`; in a strict queue it stays, failed, and holds up the rest
              └─ loses the lease: nothing is done; another worker has the task, or will
```

The lease is renewed every half of it. When a renewal is refused, or could not be made until the lease was over, the
work is told at once (`Held.lost`, and the callbacks), and whatever it returns is dropped: its version is an old one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_parallel_apply.queue.arguments import check_names
from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    FailureReason,
    Insert,
    Json,
    QueueError,
    QueueUnavailable,
    Task,
    TaskRef,
)
from airflow_parallel_apply.queue.protocol import Queue
from airflow_parallel_apply.queue.renewals import renewed

ERROR_SUFFIX: Final = "/err"

_FAILED: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""When the failed head of a strict queue arrives: never, unless a person changes it."""
_IDLE: Final = timedelta(seconds=5)
"""Longest wait for a task without looking whether to stop."""
_UNAVAILABLE_PAUSE_SECONDS: Final = 0.2
_MAX_ERR_CHARACTERS: Final = 2000


class LeaseLost(QueueError):
    """Somebody else may have the task by now: stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Further effects of finishing a task, done in the modify that deletes it."""

    insert: Sequence[Insert] = ()
    change: Sequence[Change] = ()
    delete: Sequence[TaskRef] = ()
    depend: Sequence[TaskRef] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`delay` of the first retry; each further one waits twice as long, up to `max_delay`."""

    max_attempts: int = 5
    delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.delay < timedelta(0) or self.max_delay < self.delay:
            raise ValueError("a task has at least one attempt, and delays that are not negative")

    def delay_after(self, attempt: int) -> timedelta:
        """Before the next one, when so many have failed."""
        doublings: int = 2 ** min(attempt - 1, 30)
        return min(self.delay * doublings, self.max_delay)


@dataclass(slots=True)
class Held:
    """A task under our lease, as the function sees it."""

    task: Task
    """As it was claimed; renewals change its version, which is not the function's business."""
    _lost: threading.Event = field(default_factory=threading.Event)
    _on_lost: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def value(self) -> Json:
        return self.task.value

    @property
    def lost(self) -> bool:
        """True once the task is lost, so that work on it should stop."""
        return self._lost.is_set()

    def check(self) -> None:
        """Raise `LeaseLost` when the lease is: for work that comes by now and then."""
        if self.lost:
            raise LeaseLost(f"the lease of task {self.task.task_id} was lost")

    def when_lost(self, cancel: Callable[[], None]) -> None:
        """Call this, in another thread, at the moment when the lease is lost; at once when it is."""
        with self._lock:
            if not self._lost.is_set():
                self._on_lost.append(cancel)
                return
        cancel()

    def lose(self) -> None:
        """The worker's: tell the function."""
        with self._lock:
            self._lost.set()
            cancels, self._on_lost = self._on_lost, []
        for cancel in cancels:
            cancel()


Work = Callable[[Held], Done | None]


class Worker:
    """Works on one task at a time; run as many as there are threads to spare. `clock`: seconds, monotonic.

    Errors of the constructor: `ValueError` for a name that leaves no room for `/err` behind it, or a lease that ends
    at once.
    """

    def __init__(
        self,
        queue: Queue,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta = timedelta(seconds=30),
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_names([*queues, *(name + ERROR_SUFFIX for name in queues)])
        if lease <= timedelta(0):
            raise ValueError(f"a worker's lease has a length: {lease}")
        self._queue = queue
        self._queues = list(queues)
        self._claimant = claimant
        self._lease = lease
        self._retry = retry or RetryPolicy()
        self._clock = clock

    def run(self, work: Work, *, stop: threading.Event) -> int:
        """Work until `stop` is set; the task under way ends first. Returns how many were finished.

        Errors: all of the queue's but `QueueUnavailable`, which is waited out.
        """
        count = 0
        while not stop.is_set():
            try:
                count += bool(self.run_one(work, timeout=_IDLE))
            except QueueUnavailable:
                stop.wait(_UNAVAILABLE_PAUSE_SECONDS)
        return count

    def run_one(self, work: Work, *, timeout: timedelta) -> bool | None:
        """Claim a task and work on it: whether it was finished; None when none came.

        Errors: the queue's own. After `QueueUnavailable` the task was finished, or comes free at its lease's end.
        """
        task = self._queue.claim(self._queues, claimant=self._claimant, lease=self._lease, timeout=timeout)
        if task is None:
            return None
        renewal = _Renewal(self._queue, task, self._claimant, self._lease, self._clock)
        try:
            done = work(renewal.held)
        except Exception as error:  # noqa: BLE001  whatever it is, the task has failed by it, and says so
            latest = renewal.end()
            if not renewal.held.lost:
                self._failed(latest, error)
            return False
        except BaseException:
            renewal.end()
            raise
        latest = renewal.end()
        return False if renewal.held.lost else self._finished(latest, done or Done())

    def _finished(self, task: Task, done: Done) -> bool:
        """A refusal for what the function asked for, by wrong versions of other tasks or since it cannot be at all, is
        its failure.
        """
        try:
            self._queue.modify(
                claimant=self._claimant,
                insert=done.insert,
                change=done.change,
                delete=[task.ref, *done.delete],
                depend=done.depend,
            )
        except DependencyError as error:
            if not any(failure.task_id == task.task_id for failure in error.deletes):
                self._failed(task, error)
            return False
        except ValueError as error:
            self._failed(task, error)
            return False
        return True

    def _failed(self, task: Task, error: Exception) -> None:
        attempt = task.attempt + 1
        queue = task.queue
        at: datetime | timedelta | None = None
        if attempt < self._retry.max_attempts:
            at = self._retry.delay_after(attempt)
        elif task.sequence is not None:
            at = _FAILED
        else:
            queue += ERROR_SUFFIX
        change = Change(
            ref=task.ref, value=task.value, queue=queue, at=at, claimed=False, attempt=attempt, err=_text(error)
        )
        try:
            self._queue.modify(claimant=self._claimant, change=[change])
        except DependencyError as refused:
            if any(failure.reason is FailureReason.MIXED for failure in refused.changes):
                # The other queue is strict: as in a strict queue it stays, failed, but holds up nothing here.
                self._stay_failed(change)
            # Else somebody has it by now.

    def _stay_failed(self, change: Change) -> None:
        with suppress(DependencyError):
            self._queue.modify(claimant=self._claimant, change=[replace(change, queue=None, at=_FAILED)])


class _Renewal:
    """Renews one task's lease in a thread until `end`, or until it is lost."""

    def __init__(self, queue: Queue, task: Task, claimant: str, lease: timedelta, clock: Callable[[], float]) -> None:
        self.held = Held(task)
        self._queue = queue
        self._latest = task
        self._claimant = claimant
        self._lease = lease
        self._clock = clock
        self._until = clock() + lease.total_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="queue lease", daemon=True)
        self._thread.start()

    def end(self) -> Task:
        """Renew no more: the task at its last version."""
        self._ended.set()
        self._thread.join()
        return self._latest

    def _renew(self) -> None:
        half = self._lease.total_seconds() / 2
        pause = half
        while not self._ended.wait(pause):
            asked_at = self._clock()
            try:
                with self._told_in_time():
                    self._latest = renewed(self._queue, self._latest, claimant=self._claimant, lease=self._lease)
            except QueueUnavailable:
                left = self._until - self._clock()
                if left <= 0:
                    self.held.lose()
                    return
                pause = min(_UNAVAILABLE_PAUSE_SECONDS, left)
            except QueueError:
                self.held.lose()
                return
            else:
                self._until = asked_at + self._lease.total_seconds()
                pause = half

    @contextmanager
    def _told_in_time(self) -> Iterator[None]:
        """The work is told at the lease's end even while a call to a queue that does not answer goes on."""
        watch = threading.Timer(max(self._until - self._clock(), 0.0), self.held.lose)
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()


def _text(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode().replace("\0", "")
    return text[:_MAX_ERR_CHARACTERS]

"""The queue's protocol: implementations state only what differs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from airflow_parallel_apply.queue.model import Change, Insert, QueueStats, Task, TaskId, TaskRef


class Queue(Protocol):
    """The queue that workers pull from and the coordinator steers by. Several threads may call it at once.

    Errors: `QueueUnavailable` (a modify may or may not have been done: name versions and retry), `DependencyError`
    (nothing was done).
    """

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
        """Claim up to `limit` tasks, each by itself: version + 1, claims + 1, at = now + lease. A strict queue gives
        its head and no more; the queues are asked in random order.

        Where there is none: waits up to `timeout` for one to arrive, be inserted, be changed or come free. A modify of
        a queue of `wake` ends the wait too: what the caller waits for may not come any more.
        """
        ...

    def try_claim(self, queues: Sequence[str], *, claimant: str, lease: timedelta) -> Task | None:
        """Claim a task of one of the queues, or none."""
        return next(iter(self.claim_many(queues, claimant=claimant, lease=lease, limit=1)), None)

    def claim(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        timeout: timedelta,
        wake: Sequence[str] = (),
    ) -> Task | None:
        """As `try_claim`, with the wait of `claim_many`."""
        found = self.claim_many(queues, claimant=claimant, lease=lease, limit=1, timeout=timeout, wake=wake)
        return next(iter(found), None)

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        """All of it or none. The ids of the four lists are disjoint. Another's unexpired claim refuses change and
        delete, not depend. Returns the inserted tasks, then the changed ones, in the order asked (without skipped).
        """
        ...

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        """Hold the task for another lease; `DependencyError` when it is no longer ours."""
        ...

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
        """A queue's tasks in order: sequence in a strict queue, (at, id) in a spread one. Holds up nobody.

        `after`: only what stands behind that task, as it was listed; the last of a page gives the next page.
        """
        ...

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        """Statistics by queue name, of the queues that match either list (all, when both are empty)."""
        ...

    def wait_empty(self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), timeout: timedelta) -> bool:
        """Wait until no matching queue has a task; False when the time is over."""
        ...

    def close(self) -> None:
        """Give connections back; idempotent."""
        ...

"""The memory backend's core: what each call does to the tasks, under which locks. It never waits, for a task or a disk.

Values are JSON text here: the service hands them on as they came. What a call did and saw becomes durable when the
journal does, up to its position after the call; `backend.MemoryQueue` and the service wait for that before they answer.

- *Claim*: one queue's lock at a time, in random order of the queues.
- *Modify*: all its queues' locks at once, taken in name order; judged whole, journalled, then applied.
- *Listing and statistics* (`listing.py`): a queue's lock for a page or a few look-ups, one queue at a time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from airflow_parallel_apply.queue.arguments import check_claim, check_modify, check_renew
from airflow_parallel_apply.queue.memory.journal import Forgetful, Journal
from airflow_parallel_apply.queue.memory.listing import Listing
from airflow_parallel_apply.queue.memory.obstacles import judge
from airflow_parallel_apply.queue.memory.steady_clock import SteadyClock
from airflow_parallel_apply.queue.memory.task_queue import TaskQueue
from airflow_parallel_apply.queue.memory.task_queues import TaskQueues
from airflow_parallel_apply.queue.memory.watches import Watch, Watches
from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Insert,
    QueueError,
    QueueFull,
    QueueUnavailable,
    Task,
    TaskRef,
    make_task,
)
from airflow_parallel_apply.queue.preconditions import (
    Modify,
    arrival_time,
    inserted,
    not_ours,
    raise_if_refused,
    to_announce,
    transfers,
)
from airflow_parallel_apply.queue.values import replacing

_moved_on: Final = replacing(Task, "version", "claims", "claimant", "at", "modified")
_Item = TypeVar("_Item")

_MAX_RACES: Final = 1000
"""Times that tasks may go elsewhere between finding their queues and holding them; each time another one went on."""

_CLOCK_CHECK_SECONDS: Final = 10.0
"""Longest wait for an arrival without looking at the clock again, which somebody may have set."""


class Engine:
    """All queues. `clock` tells the time in UTC; no other clock decides what has arrived. `max_queue_tasks`: a modify
    that would leave a queue with more is refused (`QueueFull`).
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        clock: Callable[[], datetime] | None = None,
        max_queue_tasks: int | None = None,
    ) -> None:
        self.journal: Journal = journal or Forgetful()
        self._max_queue_tasks = max_queue_tasks
        self._clock = clock or SteadyClock()
        self.task_queues = TaskQueues()
        self.watches = Watches()
        self.listing = Listing(self.task_queues, self._clock)

    def claim_now(self, queues: Sequence[str], *, claimant: str, lease: timedelta, limit: int = 1) -> tuple[Task, ...]:
        """Claim up to `limit` tasks, without waiting. What one queue gave is returned where the journal refuses the
        next one's: it is claimed.
        """
        check_claim(queues, claimant, lease, limit)
        names = list(dict.fromkeys(queues))
        if len(names) > 1:
            random.shuffle(names)
        claimed: tuple[Task, ...] = ()
        for name in names:
            try:
                claimed += self._claim_from(name, claimant, lease, limit - len(claimed))
            except QueueError:
                if not claimed:
                    raise
                break
            if len(claimed) == limit:
                break
        return claimed

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        """The inserts' and changes' values are JSON text."""
        check_modify(claimant, insert, change, delete, depend)
        if not (insert or change or delete or depend):
            return ()
        asked = Modify.asked(claimant, insert, change, delete, depend)
        numbers = [task_id.int for task_id in asked.named]
        # Drawn ids are looked for when they are reserved: that one exists would be a wonder.
        numbers += [entry.task_id.int for entry in insert if entry.task_id is not None]
        queues = {entry.queue for entry in insert} | {entry.queue for entry in change if entry.queue is not None}
        for _ in range(_MAX_RACES):
            with self.task_queues.hold(lambda where: queues | _queues_of(numbers, where)) as task_queues:
                done = None if task_queues is None else self._modify_held(asked, numbers, task_queues)
            if done is not None:
                tasks, announced = done
                self.watches.announce(announced)
                return tasks
        raise QueueUnavailable(f"a modify collided with others {_MAX_RACES} times, nothing was done")

    def renew(self, ref: TaskRef, *, claimant: str, lease: timedelta) -> Task:
        check_renew(claimant, lease)
        for _ in range(_MAX_RACES):
            with self.task_queues.hold(lambda where: _queues_of([ref.task_id.int], where)) as task_queues:
                if task_queues is None:
                    continue
                now = self._clock()
                found = next(
                    (task for task_queue in task_queues.values() if (task := task_queue.get(ref.task_id.int))), None
                )
                if found is None or found.version != ref.version or found.claimant != claimant:
                    raise DependencyError(changes=(not_ours(ref, found, claimant),))
                renewed = _moved_on(
                    found,
                    version=found.version + 1,
                    claims=found.claims,
                    claimant=claimant,
                    at=now + lease,
                    modified=now,
                )
                self.journal.append([renewed], ())
                task_queues[found.queue].remove([ref.task_id.int])
                task_queues[found.queue].put([renewed])
            if renewed.at < found.at:
                # Sooner than those who wait were told.
                self.watches.announce([renewed.queue])
            return renewed
        raise QueueUnavailable(f"a renewal collided with others {_MAX_RACES} times, nothing was done")

    def claim_steps(
        self,
        watch: Watch,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        limit: int,
        wake: Sequence[str],
        seconds_left: Callable[[], float],
    ) -> Generator[float, None, tuple[Task, ...]]:
        """A waiting claim, for whoever can wait: yields how many seconds to wait at most for the watch (which is one
        of `queues` and `wake`), returns the tasks.
        """
        while True:
            claimed = self.claim_now(queues, claimant=claimant, lease=lease, limit=limit)
            left = seconds_left()
            if claimed or left <= 0:
                return claimed
            due = self._seconds_to_next_arrival(queues)
            if due is None or due > 0:
                yield min(left, _CLOCK_CHECK_SECONDS if due is None else due, _CLOCK_CHECK_SECONDS)
            if not watch.heard().isdisjoint(wake):
                return self.claim_now(queues, claimant=claimant, lease=lease, limit=limit)

    def empty_steps(
        self, watch: Watch, prefix: Sequence[str], exact: Sequence[str], seconds_left: Callable[[], float]
    ) -> Generator[float, None, bool]:
        """As `claim_steps`, until no matching queue has a task; the watch is one of all queues."""
        while True:
            watch.heard()
            if not self.listing.queue_stats(prefix=prefix, exact=exact, limit=1):
                return True
            left = seconds_left()
            if left <= 0:
                return False
            yield left

    def _claim_from(self, name: str, claimant: str, lease: timedelta, limit: int) -> tuple[Task, ...]:
        while (task_queue := self.task_queues.find(name)) is not None:
            with task_queue.lock:
                if task_queue.removed:
                    # Another one may stand in its place by now; each round means that a queue came and went.
                    continue
                now = self._clock()
                until = now + lease
                start, found = task_queue.claimable(now, limit)
                claimed = tuple(
                    _moved_on(
                        task,
                        version=task.version + 1,
                        claims=task.claims + 1,
                        claimant=claimant,
                        at=until,
                        modified=now,
                    )
                    for task in found
                )
                if claimed:
                    self.journal.append(claimed, ())
                    task_queue.claim(start, found, claimed)
                return claimed
        return ()

    def _modify_held(
        self, asked: Modify, numbers: Sequence[int], task_queues: Mapping[str, TaskQueue]
    ) -> tuple[tuple[Task, ...], set[str]] | None:
        """Judge and apply, all locks held: the tasks, and the queues to announce. None: an id was taken meanwhile.
        `numbers`: of the ids that tasks may have now.
        """
        now = self._clock()
        before = self._found(numbers, task_queues)
        verdict = judge(asked, before, task_queues)
        raise_if_refused(asked, before, verdict, now)
        insert = verdict.done(asked)
        new = [inserted(task_id, entry, entry.value, now) for task_id, entry in insert]
        changed = [_changed(entry, asked.claimant, now, before) for entry in asked.change]
        self._check_room(task_queues, new)
        with self.task_queues.reserved(new) as free:
            if not free:
                return None
            if new or changed or asked.delete:
                self.journal.append([*new, *changed], [ref.task_id for ref in asked.delete])
        deleted = [ref.task_id.int for ref in asked.delete]
        replaced = (task.task_id.int for task in changed)
        for name, leaving in _grouped((before[number].queue, number) for number in (*deleted, *replaced)):
            task_queues[name].remove(leaving)
        self.task_queues.forget(deleted)
        self.task_queues.transfer(task for task in changed if task.queue != before[task.task_id.int].queue)
        done = (*new, *changed)
        for name, tasks in _grouped((task.queue, task) for task in done):
            task_queues[name].put(tasks)
        return done, to_announce(asked, before, insert, now)

    def _check_room(self, task_queues: Mapping[str, TaskQueue], new: Sequence[Task]) -> None:
        """Only what is new counts: who transfers or deletes tasks is never held up by a queue that is full."""
        if self._max_queue_tasks is None:
            return
        for name, count in Counter(task.queue for task in new).items():
            size = len(task_queues[name])
            if size + count > self._max_queue_tasks:
                raise QueueFull(
                    f"queue {name} has {size} tasks and may have {self._max_queue_tasks}: no room for {count} more; "
                    "nothing was done"
                )

    def _found(self, numbers: Sequence[int], task_queues: Mapping[str, TaskQueue]) -> dict[int, Task]:
        """The tasks with these ids. One that came just now into a queue that we do not hold is none yet: its id is
        found taken when it is reserved.
        """
        return {
            number: task
            for number, name in self.task_queues.where(numbers).items()
            if name in task_queues and (task := task_queues[name].get(number)) is not None
        }

    def _seconds_to_next_arrival(self, queues: Sequence[str]) -> float | None:
        arrivals: list[datetime] = []
        for name in queues:
            task_queue = self.task_queues.find(name)
            if task_queue is not None:
                with task_queue.lock:
                    if task_queue.head is not None:
                        arrivals.append(task_queue.head.at)
        return (min(arrivals) - self._clock()).total_seconds() if arrivals else None


def _queues_of(numbers: Sequence[int], where: Mapping[int, str]) -> set[str]:
    return {name for number in numbers if (name := where.get(number)) is not None}


def _grouped(pairs: Iterable[tuple[str, _Item]]) -> Iterable[tuple[str, list[_Item]]]:
    """By queue."""
    groups: dict[str, list[_Item]] = {}
    for name, item in pairs:
        groups.setdefault(name, []).append(item)
    return groups.items()


def _changed(entry: Change, claimant: str, now: datetime, found: Mapping[int, Task]) -> Task:
    before, at = found[entry.ref.task_id.int], arrival_time(entry.at, now)
    return make_task(
        task_id=before.task_id,
        queue=entry.queue or before.queue,
        version=before.version + 1,
        sequence=entry.sequence if transfers(entry, found) else before.sequence,
        at=at,
        claimant=claimant if entry.claimed and at > now else None,
        claims=before.claims,
        attempt=before.attempt if entry.attempt is None else entry.attempt,
        err=before.err if entry.err is None else entry.err,
        value=entry.value,
        created=before.created,
        modified=now,
    )

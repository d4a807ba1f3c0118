"""One queue's tasks, in order, with what counting them takes kept up to date, so that statistics walk over nothing.

Its `lock` guards all of it: every method and attribute is for the holder of the lock. Values are JSON text.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice

from sortedcontainers import SortedList

from airflow_parallel_apply.queue.model import QueueStats, Task, TaskId

Place = tuple[int | datetime, int]
"""Where a task stands in its queue: (sequence, id), or (at, id) in a spread queue; ids as numbers, which compare alike
and many times faster.
"""

OLDEST = 32
"""Among so many tasks, from the oldest on, a claim from a spread queue chooses: one that always fails, or that others
are about to take, stands in nobody's way, and none is left behind for long. `claim.sql` has the same number.
"""

_INSTANT = timedelta(microseconds=1)


class Shelf:
    """Strict while its tasks have sequences; which kind it is, is decided anew when it was empty."""

    __slots__ = ("_arrivals", "_claims", "_held", "_order", "_tasks", "lock", "name", "removed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.removed = False
        """Set once, when the queue has vanished: who still has this shelf in hand must look for another one."""
        self._tasks: dict[int, Task] = {}
        self._order: SortedList[Place] = SortedList()
        self._arrivals: SortedList[datetime] = SortedList()
        """Of a strict queue, whose order does not tell them."""
        self._held: SortedList[datetime] = SortedList()
        """Arrival times of the tasks that somebody claimed."""
        self._claims: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, task_id: TaskId) -> Task | None:
        return self._tasks.get(task_id.int)

    @property
    def head(self) -> Task | None:
        """The first in order."""
        return self._tasks[self._order[0][1]] if self._tasks else None

    @property
    def is_strict(self) -> bool:
        head = self.head
        return head is not None and head.sequence is not None

    def claimable(self, now: datetime, limit: int) -> list[Task]:
        """The head, if it has arrived: of a strict queue nothing else. Of a spread one up to `limit` tasks that stand
        side by side, somewhere among the oldest.
        """
        head = self.head
        if head is None or head.at > now:
            return []
        if head.sequence is not None:
            return [head]
        available = self._order.bisect_left((now + _INSTANT,))
        count = min(limit, available)
        start = chosen_place(min(available, max(limit, OLDEST)) - count + 1)
        return [self._tasks[number] for _, number in self._order.islice(start, start + count)]

    def has_place_taken(self, sequence: int, leaving: frozenset[TaskId]) -> bool:
        """Whether a task that stays has this sequence."""
        index = self._order.bisect_left((sequence,))
        if index == len(self._order):
            return False
        found, number = self._order[index]
        return found == sequence and self._tasks[number].task_id not in leaving

    def put(self, task: Task) -> None:
        """Add the task, or put it in place of the one with its id."""
        number = task.task_id.int
        if number in self._tasks:
            self.remove(task.task_id)
        self._tasks[number] = task
        self._order.add(place_of(task))
        if task.sequence is not None:
            self._arrivals.add(task.at)
        if task.claimant is not None:
            self._held.add(task.at)
        self._claims[task.claims] += 1

    def fill(self, tasks: Iterable[Task]) -> None:
        """Add many tasks to an empty shelf: what `put` does, sorted once."""
        self._tasks = {task.task_id.int: task for task in tasks}
        found = self._tasks.values()
        self._order.update(map(place_of, found))
        self._arrivals.update(task.at for task in found if task.sequence is not None)
        self._held.update(task.at for task in found if task.claimant is not None)
        self._claims.update(task.claims for task in found)

    def remove(self, task_id: TaskId) -> None:
        task = self._tasks.pop(task_id.int)
        self._order.remove(place_of(task))
        if task.sequence is not None:
            self._arrivals.remove(task.at)
        if task.claimant is not None:
            self._held.remove(task.at)
        self._claims[task.claims] -= 1
        if not self._claims[task.claims]:
            del self._claims[task.claims]

    def stats(self, now: datetime) -> QueueStats:
        """In the time of a few look-ups, whatever the size. The queue is not empty."""
        size = len(self._tasks)
        strict = self.is_strict
        available = self._arrivals.bisect_right(now) if strict else self._order.bisect_left((now + _INSTANT,))
        claimed = len(self._held) - self._held.bisect_right(now)
        return QueueStats(
            queue=self.name,
            size=size,
            claimed=claimed,
            available=available,
            future=size - available - claimed,
            max_claims=max(self._claims),
        )

    def page(self, after: Place | None, count: int) -> list[Task]:
        """Up to `count` tasks that stand behind a place."""
        if after is not None and self._order and isinstance(after[0], int) is not self.is_strict:
            # The queue has become one of the other kind: everything is behind.
            after = None
        found = self._order.irange(after, inclusive=(False, True))
        return [self._tasks[number] for _, number in islice(found, count)]


def chosen_place(count: int) -> int:
    """One of `count` places, the first ones more often."""
    return int(count * random.random() ** 2)  # noqa: S311


def place_of(task: Task) -> Place:
    """Where a task stands."""
    return (task.at if task.sequence is None else task.sequence, task.task_id.int)

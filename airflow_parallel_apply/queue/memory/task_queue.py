"""One queue's tasks, in order, with what counting them takes kept up to date, so that statistics walk over nothing.

Its `lock` guards all of it: every method and attribute is for the holder of the lock. Values are JSON text. Ids are
numbers here, and so are times, in microseconds: what is looked up and compared most often.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from airflow_parallel_apply.queue.model import QueueStats, Task
from airflow_parallel_apply.queue.timestamps import microseconds

Place = int
"""A task's place in its queue: its sequence, or in a spread queue its arrival time, and below that its id, all in one
number, which compares many times faster than they do one after the other.
"""

_ID_BITS: Final = 128
_ID: Final = (1 << _ID_BITS) - 1

OLDEST = 32
"""Among so many tasks, from the oldest on, a claim from a spread queue chooses: one that always fails, or that others
are about to take, stands in nobody's way, and none is left behind for long. `claim.sql` has the same number.
"""


class TaskQueue:
    """Strict while its tasks have sequences; which kind it is, is decided anew when it was empty."""

    __slots__ = ("_arrivals", "_claims", "_delayed", "_held_count", "_order", "_tasks", "lock", "name", "removed")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.removed = False
        """Set once, when the queue has vanished: who still has this task queue in hand must look for another one."""
        self._tasks: dict[int, Task] = {}
        self._order: SortedList[Place] = SortedList()
        self._arrivals: SortedList[int] = SortedList()
        """The arrival times of the tasks of a strict queue, whose order does not tell them."""
        self._delayed: SortedList[int] = SortedList()
        """Arrival times of the tasks that nobody held when they were put off. Those that somebody holds need no list of
        theirs: they are the others which have not arrived.
        """
        self._held_count = 0
        """Tasks that somebody claimed, their leases over or not."""
        self._claims: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, number: int) -> Task | None:
        return self._tasks.get(number)

    @property
    def head(self) -> Task | None:
        """The first in order."""
        return self._tasks[self._order[0] & _ID] if self._tasks else None

    @property
    def is_strict(self) -> bool:
        head = self.head
        return head is not None and head.sequence is not None

    def claimable(self, now: datetime, limit: int) -> tuple[int, list[Task]]:
        """The head, if it has arrived: of a strict queue nothing else. Of a spread one up to `limit` tasks that stand
        side by side, somewhere among the oldest; and how many stand before them.
        """
        head = self.head
        if head is None or head.at > now:
            return 0, []
        if head.sequence is not None:
            return 0, [head]
        available = self._arrived(now)
        count = min(limit, available)
        start = chosen_place(min(available, max(limit, OLDEST)) - count + 1)
        return start, [self._tasks[place & _ID] for place in self._order[start : start + count]]

    def claim(self, start: int, found: Sequence[Task], claimed: Sequence[Task]) -> None:
        """Put what was claimable, claimed now, in the place of what was found."""
        del self._order[start : start + len(found)]
        self._leave(found)
        self.put(claimed)

    def has_place_taken(self, sequence: int, leaving: frozenset[int]) -> bool:
        """True if a task that stays has this sequence."""
        index = self._order.bisect_left(sequence << _ID_BITS)
        if index == len(self._order):
            return False
        place = self._order[index]
        return place >> _ID_BITS == sequence and place & _ID not in leaving

    def put(self, tasks: Sequence[Task]) -> None:
        """Add tasks that are not here, sorted once."""
        self._tasks.update((task.task_id.int, task) for task in tasks)
        self._order.update(map(place_of, tasks))
        self._arrivals.update(microseconds(task.at) for task in tasks if task.sequence is not None)
        self._delayed.update(microseconds(task.at) for task in tasks if _is_delayed(task))
        for task in tasks:
            self._claims[task.claims] += 1
            self._held_count += task.claimant is not None

    def remove(self, numbers: Iterable[int]) -> None:
        """Tasks by the numbers of their ids."""
        gone = [self._tasks.pop(number) for number in numbers]
        for task in gone:
            self._order.remove(place_of(task))
        self._leave(gone)

    def stats(self, now: datetime) -> QueueStats:
        """In the time of a few look-ups, whatever the size. The queue is not empty."""
        size = len(self._tasks)
        available = self._arrivals.bisect_right(microseconds(now)) if self.is_strict else self._arrived(now)
        delayed = len(self._delayed) - self._delayed.bisect_right(microseconds(now))
        # Were the clock set back, tasks would have ceased to have arrived that nobody holds.
        claimed = min(size - available - delayed, self._held_count)
        return QueueStats(
            queue=self.name,
            size=size,
            claimed=claimed,
            available=available,
            future=size - available - claimed,
            max_claims=max(self._claims),
        )

    def page(self, after: Task | None, count: int) -> list[Task]:
        """Return up to `count` tasks that stand behind where one stands, or stood. When the queue has become one of the
        other kind meanwhile, everything is behind.
        """
        behind = None if after is None or (after.sequence is not None) is not self.is_strict else place_of(after)
        found = self._order.irange(behind, inclusive=(False, True))
        return [self._tasks[place & _ID] for place in islice(found, count)]

    def _leave(self, tasks: Sequence[Task]) -> None:
        """Undo what `put` counted."""
        for task in tasks:
            if task.sequence is not None:
                self._arrivals.remove(microseconds(task.at))
            if _is_delayed(task):
                self._delayed.remove(microseconds(task.at))
            self._held_count -= task.claimant is not None
            self._claims[task.claims] -= 1
            if not self._claims[task.claims]:
                del self._claims[task.claims]

    def _arrived(self, now: datetime) -> int:
        """The number of tasks of a spread queue that have arrived: they come first."""
        count: int = self._order.bisect_left((microseconds(now) + 1) << _ID_BITS)
        return count


def _is_delayed(task: Task) -> bool:
    return task.claimant is None and task.at > task.modified


def chosen_place(count: int) -> int:
    """One of `count` places, the first ones more often."""
    return int(count * random.random() ** 2)  # noqa: S311


def place_of(task: Task) -> Place:
    """The place of a task."""
    return (microseconds(task.at) if task.sequence is None else task.sequence) << _ID_BITS | task.task_id.int

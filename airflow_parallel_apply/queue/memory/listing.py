"""Listings and statistics of the memory backend: they hold one queue's lock at a time, and never for long.

A listing takes a page under one lock, statistics a few look-ups, so neither holds up a claim or a modify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from airflow_parallel_apply.queue.memory.task_queue import place_of
from airflow_parallel_apply.queue.memory.task_queues import TaskQueues
from airflow_parallel_apply.queue.model import QueueStats, Task, TaskId

PAGE_TASKS: Final = 500
"""Tasks that a listing takes from a queue under one lock: well below a millisecond."""


class Listing:
    """Reads the tasks of all queues. `clock` tells the time in UTC."""

    def __init__(self, task_queues: TaskQueues, clock: Callable[[], datetime]) -> None:
        self._task_queues = task_queues
        self._clock = clock

    def tasks(
        self,
        queue: str,
        *,
        claimant: str | None = None,
        ids: Sequence[TaskId] = (),
        after: Task | None = None,
        limit: int | None = None,
    ) -> Iterator[Task]:
        """In order, page by page: what changes in a queue of more than a page meanwhile is met before or after its
        change, or (when it is transferred to where the listing has been) not at all.
        """
        # Of a claimant's tasks nobody knows how far apart they are.
        page_tasks = PAGE_TASKS if limit is None or claimant is not None else min(limit, PAGE_TASKS)
        found = (
            iter(self._named(queue, claimant, ids, after)) if ids else self._walk(queue, claimant, after, page_tasks)
        )
        yield from islice(found, limit)

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        found: list[QueueStats] = []
        for name in self._matching(prefix, exact):
            if limit is not None and len(found) >= limit:
                break
            task_queue = self._task_queues.find(name)
            if task_queue is not None:
                with task_queue.lock:
                    if len(task_queue):
                        found.append(task_queue.stats(self._clock()))
        return tuple(found)

    def _walk(self, queue: str, claimant: str | None, after: Task | None, page_tasks: int) -> Iterator[Task]:
        while (task_queue := self._task_queues.find(queue)) is not None:
            with task_queue.lock:
                page = task_queue.page(after, page_tasks)
            yield from (task for task in page if claimant is None or task.claimant == claimant)
            if len(page) < page_tasks:
                return
            after = page[-1]

    def _named(self, queue: str, claimant: str | None, ids: Sequence[TaskId], after: Task | None) -> list[Task]:
        task_queue = self._task_queues.find(queue)
        if task_queue is None:
            return []
        with task_queue.lock:
            found = [task for task_id in dict.fromkeys(ids) if (task := task_queue.get(task_id.int)) is not None]
        listed = sorted((task for task in found if claimant is None or task.claimant == claimant), key=place_of)
        return [task for task in listed if after is None or place_of(task) > place_of(after)]

    def _matching(self, prefix: Sequence[str], exact: Sequence[str]) -> list[str]:
        if not prefix and not exact:
            return self._task_queues.names()
        if not prefix:
            return sorted(set(exact))
        starts, wanted = tuple(prefix), frozenset(exact)
        return [name for name in self._task_queues.names() if name in wanted or name.startswith(starts)]

"""Knows which queues there are, and which task is in which, under one system-wide lock that is held only to look up.

Lock order: task queues' locks by name, then the directory's. Whoever holds the directory's lock takes no other one, so
nobody waits in a circle, and nobody waits for it longer than a look-up takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from airflow_parallel_apply.queue.memory.task_queue import TaskQueue
from airflow_parallel_apply.queue.model import Task

Involved = Callable[[Mapping[int, str]], set[str]]
"""From where tasks are, by the numbers of their ids, to the queues that a modify has to do with. Called under the
directory's lock.
"""


class TaskQueues:
    """A queue is there from its first task to its last. `where` changes only under the locks of the task queues that a
    task leaves and enters, and of the directory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, TaskQueue] = {}
        self._where: dict[int, str] = {}

    def find(self, name: str) -> TaskQueue | None:
        # One look-up in a dictionary: no lock makes it more than that.
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """The names of all queues, sorted."""
        with self._lock:
            return sorted(self._by_name)

    def where(self, numbers: Iterable[int]) -> dict[int, str]:
        """The queues of those that exist."""
        with self._lock:
            return {number: name for number in numbers if (name := self._where.get(number)) is not None}

    @contextmanager
    def hold(self, involved: Involved) -> Iterator[dict[str, TaskQueue] | None]:
        """Hold the locks of all task queues that are involved, made where there are none. None when tasks went
        elsewhere before all were held: look again.

        A task queue that is left empty vanishes. A thread that waited for its lock finds it `removed`, and looks again
        instead of putting a task where nobody would find it.
        """
        with self._lock:
            names = involved(self._where)
            task_queues = {name: self._task_queue(name) for name in sorted(names)}
        with ExitStack() as held:
            for task_queue in task_queues.values():
                held.enter_context(task_queue.lock)
            try:
                with self._lock:
                    steady = involved(self._where) == names
                yield (
                    task_queues
                    if steady and not any(task_queue.removed for task_queue in task_queues.values())
                    else None
                )
            finally:
                with self._lock:
                    self._clean_up(task_queues.values())

    @contextmanager
    def reserved(self, tasks: Iterable[Task]) -> Iterator[bool]:
        """Give the ids of new tasks to us alone, in queues whose locks we hold; False when one of them exists by now.
        An error in the block gives them up.
        """
        wanted = {task.task_id.int: task.queue for task in tasks}
        with self._lock:
            free = self._where.keys().isdisjoint(wanted)
            if free:
                self._where.update(wanted)
        try:
            yield free
        except BaseException:
            if free:
                self.forget(wanted)
            raise

    def forget(self, numbers: Iterable[int]) -> None:
        """These tasks are gone."""
        with self._lock:
            for number in numbers:
                del self._where[number]

    def transfer(self, tasks: Iterable[Task]) -> None:
        """These tasks are in other queues now."""
        with self._lock:
            self._where.update((task.task_id.int, task.queue) for task in tasks)

    def fill(self, tasks: Iterable[Task]) -> None:
        """Put what was recovered in place. Nobody else has these task queues yet."""
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            by_queue.setdefault(task.queue, []).append(task)
        for name, found in by_queue.items():
            self._task_queue(name).put(found)
            self._where.update((task.task_id.int, name) for task in found)

    def _task_queue(self, name: str) -> TaskQueue:
        task_queue = self._by_name.get(name)
        if task_queue is None:
            task_queue = self._by_name[name] = TaskQueue(name)
        return task_queue

    def _clean_up(self, task_queues: Iterable[TaskQueue]) -> None:
        for task_queue in task_queues:
            if not len(task_queue) and self._by_name.get(task_queue.name) is task_queue:
                task_queue.removed = True
                del self._by_name[task_queue.name]

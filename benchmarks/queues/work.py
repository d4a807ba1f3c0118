"""The work that all do: tasks are inserted by all workers, then claimed and finished by all workers, each once.

What is finished is gone from the queue. Workers are threads of one process, and share a client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Final

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.queue import Insert, Queue

LEASE: Final = timedelta(minutes=30)
QUEUE: Final = "work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much, by how many, and how many tasks a call has."""

    tasks: int
    value_bytes: int
    workers: int
    batch: int

    def value(self, number: int) -> dict[str, object]:
        """JSON of about as many bytes as asked."""
        bare = len(f'{{"n": {number}, "pad": ""}}')
        return {"n": number, "pad": "x" * max(self.value_bytes - bare, 0)}

    def shares(self) -> list[range]:
        """The tasks' numbers, by worker."""
        return [range(worker, self.tasks, self.workers) for worker in range(self.workers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of the two halves."""

    insert: float
    work: float

    @property
    def total(self) -> float:
        return self.insert + self.work


def run(queue: Queue, work: Work) -> Spent:
    """Errors: `TargetError`, when a task was lost or done twice: then the numbers mean nothing."""
    inserted = _together(work, lambda worker: _insert(queue, work, worker))
    done: set[int] = set()
    finished = _together(work, lambda worker: _finish(queue, work, worker, done))
    left = queue.queue_stats()
    if done != set(range(work.tasks)) or left:
        raise TargetError(f"{len(done)} of {work.tasks} tasks were done, {left} are left", op="bench")
    return Spent(insert=inserted, work=finished)


def _insert(queue: Queue, work: Work, worker: int) -> None:
    share = work.shares()[worker]
    for start in range(0, len(share), work.batch):
        inserts = [Insert(queue=QUEUE, value=work.value(number)) for number in share[start : start + work.batch]]
        queue.modify(claimant=f"maker {worker}", insert=inserts)


def _finish(queue: Queue, work: Work, worker: int, done: set[int]) -> None:
    name = f"worker {worker}"
    while tasks := queue.claim_many([QUEUE], claimant=name, lease=LEASE, limit=work.batch):
        numbers = {task.value["n"] for task in tasks}
        queue.modify(claimant=name, delete=[task.ref for task in tasks])
        if len(numbers) != len(tasks) or not numbers.isdisjoint(done):
            raise TargetError("a task was done twice", op="bench")
        done |= numbers


def _together(work: Work, one: Callable[[int], None]) -> float:
    """Seconds until all workers are through, which start at the same moment."""
    start = threading.Barrier(work.workers + 1)

    def begin(worker: int) -> None:
        start.wait()
        one(worker)

    with ThreadPoolExecutor(work.workers) as pool:
        running = [pool.submit(begin, worker) for worker in range(work.workers)]
        start.wait()
        began = monotonic()
        for each in running:
            each.result()
        return monotonic() - began

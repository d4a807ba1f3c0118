"""A random walk over a queue that is the same wherever it is walked: step n depends on nothing but n, the seed, and
what the steps before it left. So a queue in memory that walked as far is the model of one that was killed.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from airflow_parallel_apply.queue import Change, Insert, Queue, Task, TaskId

LEASE = timedelta(hours=9)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)
_NAMESPACE = UUID(int=9)


class Walk:
    """Over queues of its own: no other walk meets it."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self._queue = queue
        self._seed = seed
        self._spread = [f"{seed}/a", f"{seed}/b"]
        self._strict = f"{seed}/strict"

    def step(self, number: int) -> None:
        """Claim, or modify several tasks in several queues at once. The number is kept in each task that it touches."""
        chance = random.Random(f"{self._seed}/{number}")
        claimant = f"w{self._seed}"
        if number % 4 == 3:
            # All of a spread queue, which gives at random what is less.
            name = chance.choice([*self._spread, self._strict])
            self._queue.claim_many([name], claimant=claimant, lease=LEASE, limit=10_000)
            return
        insert = [
            Insert(
                queue=name,
                task_id=TaskId(uuid5(_NAMESPACE, f"{self._seed}/{number}/{name}")),
                sequence=number if name == self._strict else None,
                value={"step": number, "pad": "x" * chance.randrange(300)},
            )
            for name in (*self._spread, self._strict)
            if chance.random() < 0.5
        ]
        tasks = [task for name in (*self._spread, self._strict) for task in self._queue.tasks(name)]
        # By id: arrival times differ from walk to walk.
        picked = chance.sample(sorted(tasks, key=lambda task: task.task_id), min(len(tasks), 4))
        delete = [task.ref for task in picked[:2]]
        change = [
            Change(
                ref=task.ref,
                value={"step": number},
                queue=None if task.queue == self._strict else chance.choice(self._spread),
                at=chance.choice([None, NEVER]),
                attempt=number,
                err="why " + "é" * chance.randrange(9),
            )
            for task in picked[2:]
        ]
        self._queue.modify(claimant=claimant, insert=insert, change=change, delete=delete)

    def picture(self) -> dict[TaskId, tuple[Any, ...]]:
        """All that must be the same: everything but times, and whether each lies in the future."""
        return {
            task.task_id: _picture(task) for name in (*self._spread, self._strict) for task in self._queue.tasks(name)
        }


def _picture(task: Task) -> tuple[Any, ...]:
    is_late = task.at > datetime.now(UTC) + timedelta(hours=4)
    return (
        task.queue, task.version, task.sequence, task.claimant, task.claims, task.attempt, task.err, str(task.value),
        is_late,
    )  # fmt: skip

"""Clients of the queue's service, until they are killed: `python -m tests.crash.queue_clients URL NAME COUNT`.

Each claims a few tasks at a time, gives one back now and then, and finishes the others by one modify that deletes them
and puts what was done into `done`, where `seen` is what the task said of itself.
"""

from __future__ import annotations

import random
import sys
import threading
from datetime import timedelta

from airflow_parallel_apply.queue import (
    Change,
    DependencyError,
    Insert,
    Queue,
    QueueUnavailable,
    Task,
    open_queue,
)

LEASE = timedelta(seconds=2)
TO_DO = ("to do/a", "to do/b", "to do/c")
DONE = "done"


def main() -> None:
    url, name, count = sys.argv[1:]
    queue = open_queue(url)
    for number in range(int(count)):
        threading.Thread(target=work, args=(queue, f"{name}.{number}")).start()


def work(queue: Queue, name: str) -> None:
    chance = random.Random(name)
    while True:
        try:
            tasks = queue.claim_many(
                TO_DO, claimant=name, lease=LEASE, limit=chance.randrange(1, 20), timeout=timedelta(seconds=5)
            )
            if tasks:
                finish(queue, name, list(tasks), chance)
        except (QueueUnavailable, DependencyError):
            # Unknown, or it was done and this is the lease's next holder: the queue knows.
            continue


def finish(queue: Queue, name: str, tasks: list[Task], chance: random.Random) -> None:
    if chance.random() < 0.2:
        tasks[0] = queue.renew(tasks[0], claimant=name, lease=LEASE)
    back = [tasks.pop()] if chance.random() < 0.2 else []
    queue.modify(
        claimant=name,
        delete=[task.ref for task in tasks],
        insert=[Insert(queue=DONE, value={"n": task.value, "by": name, "seen": seen(task)}) for task in tasks],
        # Elsewhere under the same id, so that moves are among what the fire meets.
        change=[
            Change(ref=task.ref, value=task.value, queue=chance.choice(TO_DO), attempt=task.attempt + 1)
            for task in back
        ],
    )


def seen(task: Task) -> list[int]:
    """A version is raised by each claim, each time that the task was given back, and by renewals."""
    return [task.version, task.claims, task.attempt]


if __name__ == "__main__":
    main()

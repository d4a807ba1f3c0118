"""Obstacles to a modify's arrivals in the memory backend: existing ids, taken places, queues of the other kind.

The caller holds the locks of all queues concerned, so the answer stands until it lets them go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from airflow_parallel_apply.queue.memory.task_queue import TaskQueue
from airflow_parallel_apply.queue.model import Task
from airflow_parallel_apply.queue.preconditions import (
    Arrival,
    Arrivals,
    Modify,
    Obstacle,
    arrivals_of,
    judge_arrivals,
)


def judge(asked: Modify, before: Mapping[int, Task], task_queues: Mapping[str, TaskQueue]) -> Arrivals:
    """Hold every arrival against the queue that it enters. `before`: the named tasks that exist, by the numbers of
    their ids.
    """
    arrivals = arrivals_of(asked, before)
    if not arrivals:
        return Arrivals()
    transferred = [task_id for arrival in arrivals if arrival.transfer for task_id in arrival.task_ids]
    leaving = frozenset(task_id.int for task_id in (*(ref.task_id for ref in asked.delete), *transferred))
    left = Counter(before[number].queue for number in leaving if number in before)
    obstacles = [
        _obstacle(
            arrival, before.get(arrival.task_ids[0].int), task_queues[arrival.queue], leaving, left[arrival.queue]
        )
        for arrival in arrivals
    ]
    return judge_arrivals(arrivals, obstacles)


def _obstacle(
    arrival: Arrival, existing: Task | None, task_queue: TaskQueue, leaving: frozenset[int], left: int
) -> Obstacle:
    """`left`: how many tasks leave the queue that this one enters."""
    sequence = arrival.sequence
    return Obstacle(
        version=None if existing is None else existing.version,
        taken=sequence is not None and task_queue.is_strict and task_queue.has_place_taken(sequence, leaving),
        mixed=len(task_queue) > left and task_queue.is_strict is (sequence is None),
    )

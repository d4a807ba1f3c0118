"""Tidying the queue after generations that are over."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.run.sessions import claimant_of
from airflow_parallel_apply.queue.model import DependencyError, TaskRef
from airflow_parallel_apply.queue.protocol import Queue


def sweep(queue: Queue, pipeline: str, *, below: int) -> None:
    """Delete the tasks of generations below one: a task that stood still must not touch those of its successors. What
    a dead lane still holds goes with a later sweep.
    """
    for stats in queue.queue_stats(prefix=[f"{pipeline}/"]):
        generation = stats.queue.split("/")[1]
        if not generation.isdigit() or int(generation) >= below:
            continue
        for task in queue.tasks(stats.queue, omit_values=True):
            _delete(queue, task.ref)


def _delete(queue: Queue, ref: TaskRef) -> bool:
    try:
        queue.modify(claimant=claimant_of("sweep"), delete=[ref])
    except DependencyError:
        return False
    return True

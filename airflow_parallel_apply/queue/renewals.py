"""Renewals of a claim, any of which may have been done although its answer was lost."""

from __future__ import annotations

from datetime import timedelta

from airflow_parallel_apply.queue.model import DependencyError, Task
from airflow_parallel_apply.queue.protocol import Queue


def renewed(queue: Queue, task: Task, *, claimant: str, lease: timedelta) -> Task:
    """As `Queue.renew`, even if an earlier renewal went unanswered: it raised the version, and nobody has claimed the
    task since if `claims` says so.
    """
    try:
        return queue.renew(task, claimant=claimant, lease=lease)
    except DependencyError:
        for found in queue.tasks(task.queue, ids=[task.task_id]):
            if (found.claimant, found.claims) == (claimant, task.claims) and found.version != task.version:
                return queue.renew(found, claimant=claimant, lease=lease)
        raise

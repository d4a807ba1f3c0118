"""Turns a row of the table into a task, or into as much of it as is judged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_parallel_apply.queue.arguments import from_json
from airflow_parallel_apply.queue.model import Task, TaskId, make_task


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRow:
    """Implements `Locked`: the row is locked by our transaction."""

    queue: str
    sequence: int | None
    version: int
    claimant: str | None
    at: datetime


def to_task(row: tuple[Any, ...]) -> Task:
    """A row in the order of the statements' `columns`; the value is JSON text, or null where it was not asked for."""
    task_id, queue, version, sequence, at, claimant, claims, attempt, err, value, created, modified = row
    return make_task(
        task_id=TaskId(task_id),
        queue=queue,
        version=version,
        sequence=sequence,
        at=at,
        claimant=claimant,
        claims=claims,
        attempt=attempt,
        err=err,
        value=None if value is None else from_json(value),
        created=created,
        modified=modified,
    )

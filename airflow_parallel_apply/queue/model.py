"""The words of the queue: a task, what a modify asks for, and how it may fail.

Guarantees:

- A *modify* (insert, change, delete, depend; any number of queues) happens whole or not at all.
- A task is held by one claimant at a time, until its arrival time `at`; each claim raises its version.
- Whoever names an old version is refused, and told which of its lists failed and why.
- *Strict* queue (its tasks have a `sequence`): only the task with the least sequence can be claimed; while that
  one is claimed, delayed or failed, nothing behind it is handed out. *Spread* queue (no sequences): any task that
  has arrived, older ones preferred.
- Whether a task has arrived, and when a lease ends, is decided by the backend's clock alone; an `at` given as a
  timedelta counts from there, and no other clock matters.
- *Failed* is a task that was changed to arrive so late that nobody meets it, with its error in `err`; a task with an
  error that has arrived is a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NewType
from uuid import UUID

from airflow_parallel_apply.queue.values import maker_of, quickly_made, replacing

TaskId = NewType("TaskId", UUID)
Json = Any


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task as it stood at some version. Times are UTC."""

    task_id: TaskId
    queue: str
    version: int
    sequence: int | None
    at: datetime
    claimant: str | None
    claims: int
    attempt: int
    err: str
    value: Json
    created: datetime
    modified: datetime

    @property
    def ref(self) -> TaskRef:
        """The reference by which a delete or a depend names this task."""
        return TaskRef(task_id=self.task_id, version=self.version)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRef:
    """A task at a version: valid only while nobody has changed or claimed it since."""

    task_id: TaskId
    version: int


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A new task. `at` None: available now. `task_id` None: a random one.

    All tasks of a queue have a sequence, or none has. `skip_colliding` leaves out a task whose id exists, in whichever
    queue; a taken sequence is refused all the same.
    """

    queue: str
    value: Json = None
    sequence: int | None = None
    at: datetime | timedelta | None = None
    task_id: TaskId | None = None
    attempt: int = 0
    err: str = ""
    skip_colliding: bool = False


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """New content for a task at a version; the sequence is immutable unless the task is transferred to another queue.

    A transfer takes the `sequence` given here; without one the task is spread in its new queue.

    `at` None or past frees the task; `at` in the future makes (or keeps) the modifier its claimant until then,
    unless `claimed` is False: then it is delayed, held by nobody.
    """

    ref: TaskRef
    value: Json
    queue: str | None = None
    sequence: int | None = None
    at: datetime | timedelta | None = None
    claimed: bool = True
    attempt: int | None = None
    err: str | None = None


make_task: Final = maker_of(Task)
make_ref: Final = maker_of(TaskRef)
make_insert: Final = maker_of(Insert)
make_change: Final = maker_of(Change)
with_value: Final = replacing(Task, "value")
"""The task with another form of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Counts of one queue: size = claimed + available + future, for spread queues and strict ones alike."""

    queue: str
    size: int
    claimed: int
    available: int
    future: int
    max_claims: int


class FailureReason(StrEnum):
    """The reason why one entry of a modify could not be done."""

    MISSING = "missing"
    WRONG_VERSION = "wrong version"
    CLAIMED = "claimed by another"
    NOT_HELD = "not held by the caller"
    COLLIDING = "colliding id"
    TAKEN = "sequence taken"
    MIXED = "strict and spread tasks in one queue"
    IMMUTABLE = "sequence changed without a transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One refused entry."""

    task_id: TaskId
    reason: FailureReason
    version: int | None = None
    """The version that the task has now, where it exists."""
    claimant: str | None = None
    until: datetime | None = None


class QueueError(Exception):
    """Root of the queue's errors."""


class QueueUnavailable(QueueError):
    """The backend cannot be reached now: retry, bounded."""


class QueueFull(QueueUnavailable):
    """There is no room for what a modify would keep; nothing was done. Reads go on, and so does all else with room."""


class QueueMisconfigured(QueueError):
    """A person has to act: the DSN is wrong, tables are missing or of another version, a privilege lacks."""


class QueueCorrupt(QueueMisconfigured):
    """Stored data is damaged in a place where no crash leaves damage; the message says which file and where."""


@dataclass(eq=False)
class DependencyError(QueueError):
    """A modify that did nothing, and all the reasons."""

    inserts: tuple[Failure, ...] = field(default=())
    changes: tuple[Failure, ...] = field(default=())
    deletes: tuple[Failure, ...] = field(default=())
    depends: tuple[Failure, ...] = field(default=())

    def __str__(self) -> str:
        parts = []
        for name in ("inserts", "changes", "deletes", "depends"):
            for failure in getattr(self, name):
                held = f" {failure.claimant} until {failure.until}" if failure.claimant else ""
                parts.append(f"{name[:-1]} {failure.task_id}: {failure.reason}{held}")
        return "modify refused: " + "; ".join(parts)

"""Whether a modify may be done: every entry held against what the backend says of its task and its place.

What is here is every backend's: which entries fail and why, which move, whose waiters are told.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Failure,
    FailureReason,
    Insert,
    Json,
    Task,
    TaskId,
    TaskRef,
)
from airflow_parallel_apply.queue.moments import microseconds, moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Modify:
    """What was asked for, with an id for every insert."""

    claimant: str
    insert: Sequence[tuple[TaskId, Insert]]
    change: Sequence[Change]
    delete: Sequence[TaskRef]
    depend: Sequence[TaskRef]

    @classmethod
    def asked(
        cls,
        claimant: str,
        insert: Sequence[Insert],
        change: Sequence[Change],
        delete: Sequence[TaskRef],
        depend: Sequence[TaskRef],
    ) -> Modify:
        """Give every insert its id."""
        drawn = _drawn_ids(sum(entry.task_id is None for entry in insert))
        named = [(next(drawn) if entry.task_id is None else entry.task_id, entry) for entry in insert]
        return cls(claimant=claimant, insert=named, change=change, delete=delete, depend=depend)

    @property
    def named(self) -> list[TaskId]:
        """The tasks that have to exist."""
        refs = [entry.ref for entry in self.change] + [*self.delete, *self.depend]
        return [ref.task_id for ref in refs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A task of ours to judge: nobody else can write it until our modify ends. `now` is the backend's."""

    queue: str
    sequence: int | None
    version: int
    claimant: str | None
    at: datetime
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A task that comes into a queue: an insert, or (with `move`) a change that takes it from another queue.
    `is_drawn`: the id was made at random for this modify, so no task has it.
    """

    task_id: TaskId
    queue: str
    sequence: int | None
    move: bool
    is_drawn: bool = False
    skip_colliding: bool = False

    @property
    def question(self) -> Hashable:
        """Equal for arrivals with the same obstacle: spread tasks with drawn ids meet but their queue's kind."""
        return self.queue if self.is_drawn and self.sequence is None else self.task_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What the backend holds where a task would arrive. `version` is that of the task which has the id."""

    version: int | None
    taken: bool
    mixed: bool


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """The verdict on arrivals: the refused ones, and those to leave out because their id exists, as asked."""

    refused: dict[TaskId, Failure] = field(default_factory=dict)
    skipped: set[TaskId] = field(default_factory=set)


def moves(entry: Change, locked: Mapping[TaskId, Locked]) -> bool:
    """Whether a change takes its task to another queue."""
    found = locked.get(entry.ref.task_id)
    return found is not None and entry.queue is not None and entry.queue != found.queue


def arrivals_of(modify: Modify, locked: Mapping[TaskId, Locked]) -> list[Arrival]:
    """The inserts, then the moves."""
    inserts = [
        Arrival(
            task_id=task_id,
            queue=entry.queue,
            sequence=entry.sequence,
            move=False,
            is_drawn=entry.task_id is None,
            skip_colliding=entry.skip_colliding,
        )
        for task_id, entry in modify.insert
    ]
    return inserts + [
        Arrival(task_id=entry.ref.task_id, queue=entry.queue, sequence=entry.sequence, move=True)
        for entry in modify.change
        if entry.queue is not None and moves(entry, locked)
    ]


def arrival_time(at: datetime | timedelta | None, now: datetime) -> datetime:
    """In UTC; a duration counts from `now`, which is the backend's."""
    if at is None:
        return now
    return now + at if isinstance(at, timedelta) else moment_of(microseconds(at))


def inserted(task_id: TaskId, entry: Insert, value: Json, now: datetime) -> Task:
    """What an insert makes."""
    return Task(
        task_id=task_id,
        queue=entry.queue,
        version=0,
        sequence=entry.sequence,
        at=arrival_time(entry.at, now),
        claimant=None,
        claims=0,
        attempt=entry.attempt,
        err=entry.err,
        value=value,
        created=now,
        modified=now,
    )


def judge_arrivals(arrivals: Sequence[Arrival], obstacles: Sequence[Obstacle]) -> Arrivals:
    """Against the backend, and against each other."""
    verdict = Arrivals()
    places: set[tuple[str, int]] = set()
    strict: dict[str, bool] = {}
    for arrival, obstacle in zip(arrivals, obstacles, strict=True):
        exists = obstacle.version is not None and not arrival.move
        if exists and arrival.skip_colliding:
            verdict.skipped.add(arrival.task_id)
            continue
        is_strict = arrival.sequence is not None
        reason = None
        if exists:
            reason = FailureReason.COLLIDING
        elif obstacle.mixed or strict.setdefault(arrival.queue, is_strict) != is_strict:
            reason = FailureReason.MIXED
        elif obstacle.taken or (arrival.sequence is not None and (arrival.queue, arrival.sequence) in places):
            reason = FailureReason.TAKEN
        if reason is not None:
            failure = Failure(task_id=arrival.task_id, reason=reason, version=obstacle.version)
            verdict.refused[arrival.task_id] = failure
        elif arrival.sequence is not None:
            places.add((arrival.queue, arrival.sequence))
    return verdict


def raise_if_refused(
    modify: Modify, locked: Mapping[TaskId, Locked], refused_arrivals: Mapping[TaskId, Failure]
) -> None:
    """`DependencyError` with every entry that cannot be done."""
    inserts = [refused_arrivals[task_id] for task_id, _ in modify.insert if task_id in refused_arrivals]
    changes = [
        failure
        for entry in modify.change
        if (failure := _failure(entry.ref, locked, modify.claimant) or _misplaced(entry, locked, refused_arrivals))
    ]
    deletes = [failure for ref in modify.delete if (failure := _failure(ref, locked, modify.claimant))]
    depends = [failure for ref in modify.depend if (failure := _failure(ref, locked, None))]
    if inserts or changes or deletes or depends:
        raise DependencyError(
            inserts=tuple(inserts), changes=tuple(changes), deletes=tuple(deletes), depends=tuple(depends)
        )


def to_announce(modify: Modify, locked: Mapping[TaskId, Locked], insert: Sequence[tuple[TaskId, Insert]]) -> set[str]:
    """The queues whose waiters a done modify wakes. `insert`: those that were not skipped.

    A change that only puts its task off wakes nobody: they look again when they expected the task, and not before.
    """
    queues = {entry.queue for _, entry in insert}
    queues |= {locked[ref.task_id].queue for ref in modify.delete}
    for entry in modify.change:
        before = locked[entry.ref.task_id]
        at = before.now + entry.at if isinstance(entry.at, timedelta) else entry.at
        put_off = at is not None and at > before.now and at >= before.at
        if not put_off or moves(entry, locked):
            queues |= {before.queue, entry.queue or before.queue}
    return queues


def not_ours(task: TaskRef, found: Locked | None, claimant: str) -> Failure:
    """Why a renewal found nothing to renew."""
    if found is None:
        return Failure(task_id=task.task_id, reason=FailureReason.MISSING)
    if found.version != task.version:
        return Failure(task_id=task.task_id, reason=FailureReason.WRONG_VERSION, version=found.version)
    if found.claimant is None or found.claimant == claimant:
        return Failure(task_id=task.task_id, reason=FailureReason.NOT_HELD, version=found.version)
    return Failure(
        task_id=task.task_id,
        reason=FailureReason.CLAIMED,
        version=found.version,
        claimant=found.claimant,
        until=found.at,
    )


def _drawn_ids(count: int) -> Iterator[TaskId]:
    """As `uuid4`, with one call of the system for all."""
    content = os.urandom(16 * count)
    return (TaskId(UUID(bytes=content[start : start + 16], version=4)) for start in range(0, 16 * count, 16))


def _failure(ref: TaskRef, locked: Mapping[TaskId, Locked], claimant: str | None) -> Failure | None:
    """`claimant` None: whoever holds the task, its version alone counts."""
    found = locked.get(ref.task_id)
    if found is None:
        return Failure(task_id=ref.task_id, reason=FailureReason.MISSING)
    if found.version != ref.version:
        return Failure(task_id=ref.task_id, reason=FailureReason.WRONG_VERSION, version=found.version)
    if claimant is not None and found.at > found.now and found.claimant not in (None, claimant):
        return Failure(
            task_id=ref.task_id,
            reason=FailureReason.CLAIMED,
            version=found.version,
            claimant=found.claimant,
            until=found.at,
        )
    return None


def _misplaced(
    entry: Change, locked: Mapping[TaskId, Locked], refused_arrivals: Mapping[TaskId, Failure]
) -> Failure | None:
    """A change that is refused for where it would put its task."""
    task_id = entry.ref.task_id
    if task_id in refused_arrivals:
        return refused_arrivals[task_id]
    found = locked[task_id]
    if entry.sequence is not None and entry.sequence != found.sequence and not moves(entry, locked):
        return Failure(task_id=task_id, reason=FailureReason.IMMUTABLE, version=found.version)
    return None

"""Preconditions of a modify: every entry is held against what the backend says of its task and its place.

All backends share these rules: which entries fail and why, which are transfers, whose waiters are woken. Tasks are
looked up by the numbers of their ids, which Python hashes and compares many times faster than the ids themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from airflow_parallel_apply.queue.ids import drawn_ids
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
    make_task,
)
from airflow_parallel_apply.queue.timestamps import microseconds, moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Modify:
    """A modify as requested, with an id for every insert."""

    claimant: str
    insert: Sequence[tuple[TaskId, Insert]]
    change: Sequence[Change]
    delete: Sequence[TaskRef]
    depend: Sequence[TaskRef]
    named: Sequence[TaskId]
    """The tasks that have to exist."""

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
        drawn = iter(drawn_ids(sum(entry.task_id is None for entry in insert)))
        return cls(
            claimant=claimant,
            insert=[(next(drawn) if entry.task_id is None else entry.task_id, entry) for entry in insert],
            change=change,
            delete=delete,
            depend=depend,
            named=[entry.ref.task_id for entry in change] + [ref.task_id for ref in (*delete, *depend)],
        )


class Locked(Protocol):
    """A task of ours to judge, as it stands: nobody else can write it until our modify ends."""

    @property
    def queue(self) -> str: ...

    @property
    def sequence(self) -> int | None: ...

    @property
    def version(self) -> int: ...

    @property
    def claimant(self) -> str | None: ...

    @property
    def at(self) -> datetime: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Tasks that enter one queue and meet the same conditions there: one insert, one change (`transfer`) that takes its
    task from another queue, or all spread inserts without an id of their own. The latter have drawn ids, which no other
    task has, so only the queue's kind matters to them.
    """

    task_ids: Sequence[TaskId]
    queue: str
    sequence: int | None
    transfer: bool
    skip_colliding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """The backend's contents in the place of an arrival. `version` belongs to the task that has the arrival's id."""

    version: int | None
    taken: bool
    mixed: bool


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """The verdict on arrivals: the refused ones, and those to leave out because their id exists, as asked."""

    refused: dict[int, Failure] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)

    def done(self, modify: Modify) -> Sequence[tuple[TaskId, Insert]]:
        """The inserts that are not left out."""
        if not self.skipped:
            return modify.insert
        return [(task_id, entry) for task_id, entry in modify.insert if task_id.int not in self.skipped]


def transfers(entry: Change, locked: Mapping[int, Locked]) -> bool:
    """True if a change takes its task to another queue."""
    found = locked.get(entry.ref.task_id.int)
    return found is not None and entry.queue is not None and entry.queue != found.queue


def arrivals_of(modify: Modify, locked: Mapping[int, Locked]) -> list[Arrival]:
    """The inserts, then the transfers."""
    arrivals: list[Arrival] = []
    alike: dict[str, list[TaskId]] = {}
    for task_id, entry in modify.insert:
        if entry.task_id is None and entry.sequence is None:
            if entry.queue not in alike:
                alike[entry.queue] = []
                arrivals.append(Arrival(task_ids=alike[entry.queue], queue=entry.queue, sequence=None, transfer=False))
            alike[entry.queue].append(task_id)
        else:
            arrivals.append(
                Arrival(
                    task_ids=(task_id,),
                    queue=entry.queue,
                    sequence=entry.sequence,
                    transfer=False,
                    skip_colliding=entry.skip_colliding,
                )
            )
    return arrivals + [
        Arrival(task_ids=(entry.ref.task_id,), queue=entry.queue, sequence=entry.sequence, transfer=True)
        for entry in modify.change
        if entry.queue is not None and transfers(entry, locked)
    ]


def arrival_time(at: datetime | timedelta | None, now: datetime) -> datetime:
    """In UTC; a duration counts from `now`, which is the backend's."""
    if at is None:
        return now
    return now + at if isinstance(at, timedelta) else moment_of(microseconds(at))


def inserted(task_id: TaskId, entry: Insert, value: Json, now: datetime) -> Task:
    """The task that an insert creates."""
    return make_task(
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
    """Judge arrivals against the backend, and against each other."""
    verdict = Arrivals()
    places: set[tuple[str, int]] = set()
    strict: dict[str, bool] = {}
    for arrival, obstacle in zip(arrivals, obstacles, strict=True):
        exists = obstacle.version is not None and not arrival.transfer
        if exists and arrival.skip_colliding:
            verdict.skipped.update(task_id.int for task_id in arrival.task_ids)
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
            for task_id in arrival.task_ids:
                verdict.refused[task_id.int] = Failure(task_id=task_id, reason=reason, version=obstacle.version)
        elif arrival.sequence is not None:
            places.add((arrival.queue, arrival.sequence))
    return verdict


def raise_if_refused(modify: Modify, locked: Mapping[int, Locked], arrivals: Arrivals, now: datetime) -> None:
    """`DependencyError` with every entry that cannot be done. `now` is the backend's, with the tasks locked."""
    refused, by = arrivals.refused, modify.claimant
    inserts = [refused[task_id.int] for task_id, _ in modify.insert if task_id.int in refused] if refused else []
    changes = [
        failure
        for entry in modify.change
        if (failure := _failure(entry.ref, locked, now, by) or _misplaced(entry, locked, refused))
    ]
    deletes = [failure for ref in modify.delete if (failure := _failure(ref, locked, now, by))]
    depends = [failure for ref in modify.depend if (failure := _failure(ref, locked, now, None))]
    if inserts or changes or deletes or depends:
        raise DependencyError(
            inserts=tuple(inserts), changes=tuple(changes), deletes=tuple(deletes), depends=tuple(depends)
        )


def to_announce(
    modify: Modify, locked: Mapping[int, Locked], insert: Sequence[tuple[TaskId, Insert]], now: datetime
) -> set[str]:
    """The queues whose waiters a done modify wakes. `insert`: those that were not skipped.

    A change that only puts its task off wakes nobody: they look again when they expected the task, and not before.
    """
    queues = {entry.queue for _, entry in insert}
    queues |= {locked[ref.task_id.int].queue for ref in modify.delete}
    for entry in modify.change:
        before = locked[entry.ref.task_id.int]
        at = now + entry.at if isinstance(entry.at, timedelta) else entry.at
        put_off = at is not None and at > now and at >= before.at
        if not put_off or transfers(entry, locked):
            queues |= {before.queue, entry.queue or before.queue}
    return queues


def not_ours(task: TaskRef, found: Locked | None, claimant: str) -> Failure:
    """The reason why a renewal found nothing to renew."""
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


def _failure(ref: TaskRef, locked: Mapping[int, Locked], now: datetime, claimant: str | None) -> Failure | None:
    """`claimant` None: whoever holds the task, its version alone counts."""
    found = locked.get(ref.task_id.int)
    if found is None:
        return Failure(task_id=ref.task_id, reason=FailureReason.MISSING)
    if found.version != ref.version:
        return Failure(task_id=ref.task_id, reason=FailureReason.WRONG_VERSION, version=found.version)
    if claimant is not None and found.claimant not in (None, claimant) and found.at > now:
        return Failure(
            task_id=ref.task_id,
            reason=FailureReason.CLAIMED,
            version=found.version,
            claimant=found.claimant,
            until=found.at,
        )
    return None


def _misplaced(entry: Change, locked: Mapping[int, Locked], refused_arrivals: Mapping[int, Failure]) -> Failure | None:
    """A change that is refused for where it would put its task."""
    task_id = entry.ref.task_id
    if task_id.int in refused_arrivals:
        return refused_arrivals[task_id.int]
    found = locked[task_id.int]
    if entry.sequence is not None and entry.sequence != found.sequence and not transfers(entry, locked):
        return Failure(task_id=task_id, reason=FailureReason.IMMUTABLE, version=found.version)
    return None

"""A modify as one transaction: lock in id order, judge everything, then write or refuse.

Nothing is written before every entry was judged, so a refused modify leaves no trace. What another transaction may
still do after the judgement (insert the same id or sequence) ends in a violation: the caller of `modify` starts over
and meets it as a judged failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Failure,
    FailureReason,
    Insert,
    Task,
    TaskId,
    TaskRef,
)
from airflow_parallel_apply.queue.postgres.connections import Connection
from airflow_parallel_apply.queue.postgres.rows import to_task
from airflow_parallel_apply.queue.postgres.statements import Statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Modify:
    """What was asked for, with an id for every insert."""

    claimant: str
    insert: Sequence[tuple[TaskId, Insert]]
    change: Sequence[Change]
    delete: Sequence[TaskRef]
    depend: Sequence[TaskRef]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    """A task of ours to judge: nobody else can write it until this transaction ends."""

    queue: str
    sequence: int | None
    version: int
    claimant: str | None
    at: datetime
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """A task that comes into a queue: an insert, or (with `move`) a change that leaves another queue."""

    task_id: TaskId
    queue: str
    sequence: int | None
    move: bool
    skip_colliding: bool = False


def request(
    claimant: str,
    insert: Sequence[Insert],
    change: Sequence[Change],
    delete: Sequence[TaskRef],
    depend: Sequence[TaskRef],
) -> Modify:
    """Give every insert its id."""
    named = [(TaskId(uuid4()) if entry.task_id is None else entry.task_id, entry) for entry in insert]
    return Modify(claimant=claimant, insert=named, change=change, delete=delete, depend=depend)


def run(connection: Connection, statements: Statements, modify: Modify) -> tuple[Task, ...]:
    """All of it or none; see `Queue.modify`.

    Errors: `DependencyError`; psycopg's unique violation, deadlock and serialization failure, after which the same
    call may be made again.
    """
    with connection.transaction():
        locked = _lock(connection, statements, modify)
        moved = [entry for entry in modify.change if _moves(entry, locked)]
        arrivals = [
            *(
                _Arrival(
                    task_id=task_id,
                    queue=entry.queue,
                    sequence=entry.sequence,
                    move=False,
                    skip_colliding=entry.skip_colliding,
                )
                for task_id, entry in modify.insert
            ),
            *(
                _Arrival(task_id=entry.ref.task_id, queue=entry.queue, sequence=entry.sequence, move=True)
                for entry in moved
                if entry.queue is not None
            ),
        ]
        leaving = [ref.task_id for ref in modify.delete] + [entry.ref.task_id for entry in moved]
        blocked, skipped = _judge_arrivals(connection, statements, arrivals, leaving)
        _raise_if_refused(modify, locked, blocked)
        insert = [(task_id, entry) for task_id, entry in modify.insert if task_id not in skipped]
        _delete(connection, statements, modify.delete)
        changed = _change(connection, statements, modify, locked, [entry.ref.task_id for entry in moved])
        inserted = _insert(connection, statements, insert)
        _announce(connection, statements, modify, locked, changed, inserted)
    return (
        *(inserted[task_id] for task_id, _ in insert),
        *(changed[entry.ref.task_id] for entry in modify.change),
    )


def _lock(connection: Connection, statements: Statements, modify: Modify) -> dict[TaskId, _Locked]:
    ids = [entry.ref.task_id for entry in modify.change] + [ref.task_id for ref in (*modify.delete, *modify.depend)]
    if not ids:
        return {}
    return {
        TaskId(task_id): _Locked(
            queue=queue, sequence=sequence, version=version, claimant=claimant, at=at, pending=pending
        )
        for task_id, queue, sequence, version, claimant, at, pending in connection.execute(
            statements["lock"], {"ids": ids}
        )
    }


def _moves(entry: Change, locked: Mapping[TaskId, _Locked]) -> bool:
    found = locked.get(entry.ref.task_id)
    return found is not None and entry.queue is not None and entry.queue != found.queue


def _judge_arrivals(
    connection: Connection, statements: Statements, arrivals: Sequence[_Arrival], leaving: Sequence[TaskId]
) -> tuple[dict[TaskId, Failure], set[TaskId]]:
    """What stands in the way by id, and the ids that are left out as asked."""
    if not arrivals:
        return {}, set()
    found = connection.execute(
        statements["check_arrivals"],
        {
            "ids": [arrival.task_id for arrival in arrivals],
            "queues": [arrival.queue for arrival in arrivals],
            "sequences": [arrival.sequence for arrival in arrivals],
            "leaving": list(leaving),
        },
    ).fetchall()
    blocked: dict[TaskId, Failure] = {}
    skipped: set[TaskId] = set()
    places: set[tuple[str, int]] = set()
    strict: dict[str, bool] = {}
    for arrival, (version, taken, mixed) in zip(arrivals, found, strict=True):
        if version is not None and arrival.skip_colliding:
            skipped.add(arrival.task_id)
            continue
        reason = None
        if version is not None and not arrival.move:
            reason = FailureReason.COLLIDING
        elif mixed or strict.setdefault(arrival.queue, arrival.sequence is not None) != (arrival.sequence is not None):
            reason = FailureReason.MIXED
        elif taken or (arrival.sequence is not None and (arrival.queue, arrival.sequence) in places):
            reason = FailureReason.TAKEN
        if reason is not None:
            blocked[arrival.task_id] = Failure(task_id=arrival.task_id, reason=reason, version=version)
        elif arrival.sequence is not None:
            places.add((arrival.queue, arrival.sequence))
    return blocked, skipped


def _raise_if_refused(modify: Modify, locked: Mapping[TaskId, _Locked], blocked: Mapping[TaskId, Failure]) -> None:
    inserts = [blocked[task_id] for task_id, _ in modify.insert if task_id in blocked]
    changes = [
        failure
        for entry in modify.change
        if (failure := _verdict(entry.ref, locked, modify.claimant) or _out_of_place(entry, locked, blocked))
    ]
    deletes = [failure for ref in modify.delete if (failure := _verdict(ref, locked, modify.claimant))]
    depends = [failure for ref in modify.depend if (failure := _verdict(ref, locked, None))]
    if inserts or changes or deletes or depends:
        raise DependencyError(
            inserts=tuple(inserts), changes=tuple(changes), deletes=tuple(deletes), depends=tuple(depends)
        )


def _verdict(ref: TaskRef, locked: Mapping[TaskId, _Locked], claimant: str | None) -> Failure | None:
    """`claimant` None: whoever holds the task, its version alone counts."""
    found = locked.get(ref.task_id)
    if found is None:
        return Failure(task_id=ref.task_id, reason=FailureReason.MISSING)
    if found.version != ref.version:
        return Failure(task_id=ref.task_id, reason=FailureReason.WRONG_VERSION, version=found.version)
    if claimant is not None and found.pending and found.claimant is not None and found.claimant != claimant:
        return Failure(
            task_id=ref.task_id,
            reason=FailureReason.CLAIMED,
            version=found.version,
            claimant=found.claimant,
            until=found.at,
        )
    return None


def _out_of_place(entry: Change, locked: Mapping[TaskId, _Locked], blocked: Mapping[TaskId, Failure]) -> Failure | None:
    """A change that is refused for where it would put its task."""
    task_id = entry.ref.task_id
    if task_id in blocked:
        return blocked[task_id]
    found = locked[task_id]
    if entry.sequence is not None and entry.sequence != found.sequence and not _moves(entry, locked):
        return Failure(task_id=task_id, reason=FailureReason.IMMUTABLE, version=found.version)
    return None


def _delete(connection: Connection, statements: Statements, delete: Sequence[TaskRef]) -> None:
    if delete:
        connection.execute(statements["delete"], {"ids": [ref.task_id for ref in delete]})


def _change(
    connection: Connection,
    statements: Statements,
    modify: Modify,
    locked: Mapping[TaskId, _Locked],
    moved: Sequence[TaskId],
) -> dict[TaskId, Task]:
    if not modify.change:
        return {}
    if any(locked[task_id].sequence is not None for task_id in moved):
        connection.execute(statements["leave_sequence"], {"ids": list(moved)})
    leaves = set(moved)
    rows = connection.execute(
        statements["change"],
        {
            "claimant": modify.claimant,
            "ids": [entry.ref.task_id for entry in modify.change],
            "queues": [entry.queue or locked[entry.ref.task_id].queue for entry in modify.change],
            "sequences": [
                entry.sequence if entry.ref.task_id in leaves else locked[entry.ref.task_id].sequence
                for entry in modify.change
            ],
            **_arrival_times([entry.at for entry in modify.change]),
            "claimed": [entry.claimed for entry in modify.change],
            "attempts": [entry.attempt for entry in modify.change],
            "errs": [entry.err for entry in modify.change],
            "values": [json.dumps(entry.value) for entry in modify.change],
        },
    )
    return {task.task_id: task for task in map(to_task, rows)}


def _insert(
    connection: Connection, statements: Statements, insert: Sequence[tuple[TaskId, Insert]]
) -> dict[TaskId, Task]:
    if not insert:
        return {}
    rows = connection.execute(
        statements["insert"],
        {
            "ids": [task_id for task_id, _ in insert],
            "queues": [entry.queue for _, entry in insert],
            "sequences": [entry.sequence for _, entry in insert],
            **_arrival_times([entry.at for _, entry in insert]),
            "attempts": [entry.attempt for _, entry in insert],
            "errs": [entry.err for _, entry in insert],
            "values": [json.dumps(entry.value) for _, entry in insert],
        },
    )
    return {task.task_id: task for task in map(to_task, rows)}


def _arrival_times(given: Sequence[datetime | timedelta | None]) -> dict[str, list[Any]]:
    """Apart, since the server adds the durations to its own clock."""
    return {
        "ats": [at if isinstance(at, datetime) else None for at in given],
        "delays": [at if isinstance(at, timedelta) else None for at in given],
    }


def _announce(
    connection: Connection,
    statements: Statements,
    modify: Modify,
    locked: Mapping[TaskId, _Locked],
    changed: Mapping[TaskId, Task],
    inserted: Mapping[TaskId, Task],
) -> None:
    """Wake who waits for these queues, when this transaction commits. A lease that only grew wakes nobody."""
    queues = {task.queue for task in inserted.values()}
    queues |= {locked[ref.task_id].queue for ref in modify.delete}
    for task_id, task in changed.items():
        before = locked[task_id]
        if task.queue != before.queue or task.at < before.at or task.claimant is None:
            queues |= {task.queue, before.queue}
    if queues:
        connection.execute(statements["notify"], {"channel": statements.channel, "queues": sorted(queues)})

"""Translates between the queue's words and the messages of `queue.proto`, in both directions.

Values are JSON text, but where a function says otherwise. Errors of what reads messages: `ValueError`, for what no
client of ours would send. What many of go into one message are made as `Fields`: a message that is put into another
one is copied there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_parallel_apply.queue.ids import ID_BYTES, id_of
from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Failure,
    FailureReason,
    Insert,
    Json,
    QueueStats,
    Task,
    TaskId,
    TaskRef,
    make_change,
    make_insert,
    make_ref,
    make_task,
)
from airflow_parallel_apply.queue.preconditions import inserted
from airflow_parallel_apply.queue.service import queue_pb2 as pb
from airflow_parallel_apply.queue.timestamps import microseconds, moment_of, utc_microseconds

Fields = dict[str, Any]
"""The fields of a message by name; None leaves one out."""

_MICROSECOND: Final = timedelta(microseconds=1)


def duration_to_wire(duration: timedelta) -> int:
    # As a plain duration: subclasses such as pendulum's divide in ways of their own.
    return timedelta.__floordiv__(duration, _MICROSECOND)


def duration_from_wire(count: int) -> timedelta:
    try:
        return timedelta(microseconds=count)
    except OverflowError as error:
        raise ValueError(f"a duration of {count} microseconds cannot be told") from error


def task_to_wire(task: Task, *, with_value: bool = True) -> Fields:
    sent: Fields = {
        "id": task.task_id.bytes,
        "queue": task.queue,
        "version": task.version,
        "at": utc_microseconds(task.at),
        "claimant": task.claimant,
        "claims": task.claims,
        "created": utc_microseconds(task.created),
        "modified": utc_microseconds(task.modified),
    }
    # Each field that is named costs a look-up, even if it says nothing: these say nothing of most tasks.
    if task.sequence is not None:
        sent["sequence"] = task.sequence
    if task.attempt:
        sent["attempt"] = task.attempt
    if task.err:
        sent["err"] = task.err
    if with_value:
        sent["value"] = task.value
    return sent


def task_from_wire(message: pb.Task, *, value: Json) -> Task:
    return make_task(
        task_id=id_from_wire(message.id),
        queue=message.queue,
        version=message.version,
        sequence=message.sequence if message.HasField("sequence") else None,
        at=_moment(message.at),
        claimant=message.claimant if message.HasField("claimant") else None,
        claims=message.claims,
        attempt=message.attempt,
        err=message.err,
        value=value,
        created=_moment(message.created),
        modified=_moment(message.modified),
    )


def place_to_wire(task: Task) -> pb.Task:
    """As much of a task as says where it stands."""
    return pb.Task(id=task.task_id.bytes, sequence=task.sequence, at=microseconds(task.at))


def id_from_wire(content: bytes) -> TaskId:
    if len(content) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(content)}")
    return id_of(content)


def ref_to_wire(ref: TaskRef) -> Fields:
    return {"id": ref.task_id.bytes, "version": ref.version}


def ref_from_wire(message: pb.TaskRef) -> TaskRef:
    return make_ref(task_id=id_from_wire(message.id), version=message.version)


def insert_to_wire(entry: Insert, value: str) -> Fields:
    sent: Fields = {"queue": entry.queue, "value": value}
    # As above.
    if entry.sequence is not None:
        sent["sequence"] = entry.sequence
    if entry.at is not None:
        sent["at"] = _arrival_to_wire(entry.at)
    if entry.task_id is not None:
        sent["id"] = entry.task_id.bytes
    if entry.attempt:
        sent["attempt"] = entry.attempt
    if entry.err:
        sent["err"] = entry.err
    if entry.skip_colliding:
        sent["skip_colliding"] = True
    return sent


def insert_from_wire(message: pb.Insert) -> Insert:
    return make_insert(
        # One text for all tasks of a queue, instead of one for each.
        queue=sys.intern(message.queue),
        value=message.value,
        sequence=message.sequence if message.HasField("sequence") else None,
        at=_arrival_from_wire(message.at) if message.HasField("at") else None,
        task_id=id_from_wire(message.id) if message.HasField("id") else None,
        attempt=message.attempt,
        err=message.err,
        skip_colliding=message.skip_colliding,
    )


def change_to_wire(entry: Change, value: str) -> Fields:
    return {
        "ref": ref_to_wire(entry.ref),
        "value": value,
        "queue": entry.queue,
        "sequence": entry.sequence,
        "at": _arrival_to_wire(entry.at),
        "delayed": not entry.claimed,
        "attempt": entry.attempt,
        "err": entry.err,
    }


def change_from_wire(message: pb.Change) -> Change:
    return make_change(
        ref=ref_from_wire(message.ref),
        value=message.value,
        queue=message.queue if message.HasField("queue") else None,
        sequence=message.sequence if message.HasField("sequence") else None,
        at=_arrival_from_wire(message.at) if message.HasField("at") else None,
        claimed=not message.delayed,
        attempt=message.attempt if message.HasField("attempt") else None,
        err=message.err if message.HasField("err") else None,
    )


def modified_to_wire(done: Sequence[Task], *, change_count: int) -> pb.ModifyReply:
    """`done`: the inserted tasks, then the changed ones."""
    new = done[: len(done) - change_count]
    return pb.ModifyReply(
        tasks=[task_to_wire(task, with_value=False) for task in done[len(new) :]],
        inserted=[task.task_id.bytes for task in new],
        now=microseconds(new[0].created) if new else 0,
    )


def modified_from_wire(
    reply: pb.ModifyReply, insert: Sequence[tuple[Insert, str]], changed: Sequence[str], decode: Callable[[str], Json]
) -> Iterator[Task]:
    """The tasks of `modified_to_wire`, and what was asked of them: inserts with their values' text, changes' texts."""
    made = iter(reply.inserted)
    task_id = next(made, None)
    now = _moment(reply.now)
    for entry, value in insert:
        # A skipped one names its id, and the next one that was inserted has another.
        if task_id is not None and (entry.task_id is None or entry.task_id.bytes == task_id):
            yield inserted(id_from_wire(task_id), entry, decode(value), now)
            task_id = next(made, None)
    for message, value in zip(reply.tasks, changed, strict=True):
        yield task_from_wire(message, value=decode(value))


def stats_to_wire(found: Iterable[QueueStats]) -> pb.StatsReply:
    rows = [
        pb.QueueStats(
            queue=row.queue,
            size=row.size,
            claimed=row.claimed,
            available=row.available,
            future=row.future,
            max_claims=row.max_claims,
        )
        for row in found
    ]
    return pb.StatsReply(queues=rows)


def stats_from_wire(reply: pb.StatsReply) -> tuple[QueueStats, ...]:
    return tuple(
        QueueStats(
            queue=row.queue,
            size=row.size,
            claimed=row.claimed,
            available=row.available,
            future=row.future,
            max_claims=row.max_claims,
        )
        for row in reply.queues
    )


def refused_to_wire(error: DependencyError) -> pb.Refused:
    return pb.Refused(
        inserts=_failures_to_wire(error.inserts),
        changes=_failures_to_wire(error.changes),
        deletes=_failures_to_wire(error.deletes),
        depends=_failures_to_wire(error.depends),
    )


def refused_from_wire(message: pb.Refused) -> DependencyError:
    return DependencyError(
        inserts=_failures_from_wire(message.inserts),
        changes=_failures_from_wire(message.changes),
        deletes=_failures_from_wire(message.deletes),
        depends=_failures_from_wire(message.depends),
    )


def _failures_to_wire(failures: Sequence[Failure]) -> list[pb.Failure]:
    return [
        pb.Failure(
            id=failure.task_id.bytes,
            reason=failure.reason.value,
            version=failure.version,
            claimant=failure.claimant,
            until=None if failure.until is None else microseconds(failure.until),
        )
        for failure in failures
    ]


def _failures_from_wire(messages: Iterable[pb.Failure]) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            task_id=id_from_wire(message.id),
            reason=FailureReason(message.reason),
            version=message.version if message.HasField("version") else None,
            claimant=message.claimant if message.HasField("claimant") else None,
            until=_moment(message.until) if message.HasField("until") else None,
        )
        for message in messages
    )


def _arrival_to_wire(at: datetime | timedelta | None) -> Fields | None:
    if at is None:
        return None
    return {"delay": duration_to_wire(at)} if isinstance(at, timedelta) else {"at": microseconds(at)}


def _arrival_from_wire(message: pb.Arrival) -> datetime | timedelta | None:
    match message.WhichOneof("when"):
        case "at":
            return _moment(message.at)
        case "delay":
            return duration_from_wire(message.delay)
        case _:
            return None


def _moment(count: int) -> datetime:
    try:
        return moment_of(count)
    except OverflowError as error:
        raise ValueError(f"{count} microseconds since 1970 is no time that can be told") from error

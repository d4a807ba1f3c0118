"""The format in which tasks and changes of tasks are written down: fixed fields, then texts. Little-endian; times in
microseconds.

```
task    id 16 · version · sequence · at · created · modified (8 each) · claims · attempt (4 each) · flags 1
        lengths of queue · claimant (2 each) · err · value (4 each) · then these four in UTF-8
change  count of deletes · count of puts (4 each) · ids of the deleted · tasks as they are since
```

A change holds final states, so doing it again does nothing: recovery need not know how much of it a snapshot has seen.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.queue.ids import ID_BYTES, id_of
from airflow_parallel_apply.queue.model import Task, TaskId, make_task
from airflow_parallel_apply.queue.timestamps import moment_of, utc_microseconds

_TASK: Final = struct.Struct("<16sqqqqqIiBHHII")
_COUNTS: Final = struct.Struct("<II")

_HAS_SEQUENCE: Final = 1
_HAS_CLAIMANT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord:
    """The tasks that one modify, claim or renewal wrote and deleted."""

    puts: Sequence[Task]
    deletes: Sequence[TaskId]


def encode_change(puts: Sequence[Task], deletes: Sequence[TaskId]) -> bytes:
    """The bytes of a change."""
    parts = [_COUNTS.pack(len(deletes), len(puts))]
    parts += [task_id.bytes for task_id in deletes]
    for task in puts:
        parts += _encoded(task)
    return b"".join(parts)


def decode_change(payload: bytes) -> ChangeRecord:
    """The change in some bytes. Errors: `ValueError` when they are none."""
    try:
        delete_count, put_count = _COUNTS.unpack_from(payload)
        offset = _COUNTS.size + ID_BYTES * delete_count
        deletes = [id_of(payload[start : start + ID_BYTES]) for start in range(_COUNTS.size, offset, ID_BYTES)]
        puts = []
        for _ in range(put_count):
            task, offset = _decode_task(payload, offset)
            puts.append(task)
    except struct.error as error:
        raise ValueError(f"not a change: {error}") from error
    if offset != len(payload):
        raise ValueError(f"not a change: {len(payload)} bytes instead of {offset}")
    return ChangeRecord(puts=puts, deletes=deletes)


def _encoded(task: Task) -> tuple[bytes, ...]:
    """The fixed fields, and the texts."""
    queue, err, value = task.queue.encode(), task.err.encode(), task.value.encode()
    claimant = b"" if task.claimant is None else task.claimant.encode()
    flags = (_HAS_SEQUENCE if task.sequence is not None else 0) | (_HAS_CLAIMANT if task.claimant is not None else 0)
    fields = _TASK.pack(
        task.task_id.bytes, task.version, task.sequence or 0,
        utc_microseconds(task.at), utc_microseconds(task.created), utc_microseconds(task.modified),
        task.claims, task.attempt, flags, len(queue), len(claimant), len(err), len(value),
    )  # fmt: skip
    return fields, queue, claimant, err, value


def _decode_task(payload: bytes, offset: int) -> tuple[Task, int]:
    (
        task_id, version, sequence, at, created, modified, claims, attempt, flags, *lengths,
    ) = _TASK.unpack_from(payload, offset)  # fmt: skip
    queue, claimant, err, value, end = _texts(payload, offset + _TASK.size, lengths)
    task = make_task(
        task_id=id_of(task_id),
        # One text for all tasks of a queue, instead of one for each.
        queue=sys.intern(queue),
        version=version,
        sequence=sequence if flags & _HAS_SEQUENCE else None,
        at=moment_of(at),
        claimant=claimant if flags & _HAS_CLAIMANT else None,
        claims=claims,
        attempt=attempt,
        err=err,
        value=value,
        created=moment_of(created),
        modified=moment_of(modified),
    )
    return task, end


def _texts(payload: bytes, offset: int, lengths: Iterable[int]) -> tuple[str, str, str, str, int]:
    texts = []
    for length in lengths:
        texts.append(payload[offset : offset + length].decode())
        offset += length
    queue, claimant, err, value = texts
    return queue, claimant, err, value, offset

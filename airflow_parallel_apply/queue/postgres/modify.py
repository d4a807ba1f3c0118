"""A modify as one transaction: lock in id order, judge everything, then write or refuse.

Nothing is written before every entry was judged, so a refused modify leaves no trace. What another transaction may
still do after the judgement (insert the same id or sequence) ends in a violation: the caller of `run` starts over
and meets it as a judged failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from airflow_parallel_apply.queue.arguments import from_json, to_json
from airflow_parallel_apply.queue.model import Insert, Json, Task, TaskId
from airflow_parallel_apply.queue.postgres.arrays import id_array, plain_array, text_array, time_array
from airflow_parallel_apply.queue.postgres.connections import Connection
from airflow_parallel_apply.queue.postgres.rows import LockedRow, to_task
from airflow_parallel_apply.queue.postgres.statements import Statements
from airflow_parallel_apply.queue.preconditions import (
    Arrival,
    Locked,
    Modify,
    Obstacle,
    arrivals_of,
    inserted,
    judge_arrivals,
    raise_if_refused,
    to_announce,
    transfers,
)

_Cursor = psycopg.Cursor[tuple[Any, ...]]

MAX_VALUE_BYTES: Final = 64 * 2**20
"""The bytes of one value. The server would take more, several times over in memory, and end a session that sends too
much: which its caller could only try again.
"""

_NOT_HELD: Final = "PAQ01"
"""The SQLSTATE that the function `finish` raises."""


def run(connection: Connection, statements: Statements, modify: Modify) -> tuple[Task, ...]:
    """All of it or none; see `Queue.modify`.

    Errors: `DependencyError`; psycopg's unique violation, deadlock and serialization failure, after which the same
    call may be made again.
    """
    # No pipeline: in one the server never counts as idle between statements, and a client that was stopped here would
    # keep its locks for ever instead of until the session's time limit.
    with connection.transaction():
        locked, locked_at = _lock(connection, statements, modify)
        arrivals = arrivals_of(modify, locked)
        transferred = [task_id for arrival in arrivals if arrival.transfer for task_id in arrival.task_ids]
        leaving = [ref.task_id for ref in modify.delete] + transferred
        obstacles, now = _obstacles(connection, statements, arrivals, leaving)
        verdict = judge_arrivals(arrivals, obstacles)
        raise_if_refused(modify, locked, verdict, locked_at)
        insert = verdict.done(modify)
        if modify.delete:
            connection.execute(statements["delete"], {"ids": id_array(ref.task_id for ref in modify.delete)})
        changed = _change(connection, statements, modify, locked)
        new = _insert(connection, statements, insert, now)
        queues = to_announce(modify, locked, insert, locked_at)
        if queues:
            connection.execute(
                statements["notify"], {"channel": statements.channel, "queues": text_array(sorted(queues))}
            )
    found = {} if changed is None else {task.task_id: task for task in map(to_task, changed.fetchall())}
    return (*new, *(found[entry.ref.task_id] for entry in modify.change))


def finish(connection: Connection, statements: Statements, modify: Modify) -> bool:
    """Make a modify that does nothing but delete tasks which its claimant holds; False when it is another one, or what
    it names is not as it says: nothing is done then, and `run` tells why.
    """
    if modify.insert or modify.change or modify.depend or not modify.delete:
        return False
    asked = {
        "ids": id_array(ref.task_id for ref in modify.delete),
        "versions": plain_array(ref.version for ref in modify.delete),
        "claimant": modify.claimant,
        "channel": statements.channel,
    }
    try:
        connection.execute(statements["finish"], asked)
    except psycopg.DatabaseError as error:
        if error.sqlstate != _NOT_HELD:
            raise
        return False
    return True


def _lock(connection: Connection, statements: Statements, modify: Modify) -> tuple[dict[int, LockedRow], datetime]:
    """By the numbers of their ids; and the server's time, which means nothing where nothing is locked."""
    if not modify.named:
        return {}, datetime.now(UTC)
    rows = connection.execute(statements["lock"], {"ids": id_array(modify.named)}).fetchall()
    locked = {
        task_id.int: LockedRow(queue=queue, sequence=sequence, version=version, claimant=claimant, at=at)
        for task_id, queue, sequence, version, claimant, at, _ in rows
    }
    return locked, max((row[-1] for row in rows), default=datetime.now(UTC))


def _obstacles(
    connection: Connection, statements: Statements, arrivals: Sequence[Arrival], leaving: Sequence[TaskId]
) -> tuple[list[Obstacle], datetime]:
    """In the order of the arrivals; and the server's time, which means nothing where nothing arrives."""
    if not arrivals:
        return [], datetime.now(UTC)
    places = {
        "queues": text_array(arrival.queue for arrival in arrivals),
        "sequences": plain_array(arrival.sequence for arrival in arrivals),
    }
    # A statement of its own: the next one then sees what was committed while this one waited.
    connection.execute(statements["settle_kinds"], {"schema": statements.schema, **places})
    rows = connection.execute(
        statements["check_arrivals"],
        {"ids": id_array(arrival.task_ids[0] for arrival in arrivals), "leaving": id_array(leaving), **places},
    ).fetchall()
    return [Obstacle(version=version, taken=taken, mixed=mixed) for version, taken, mixed, _ in rows], rows[0][-1]


def _change(
    connection: Connection, statements: Statements, modify: Modify, locked: Mapping[int, Locked]
) -> _Cursor | None:
    if not modify.change:
        return None
    transferred = {entry.ref.task_id for entry in modify.change if transfers(entry, locked)}
    if any(locked[task_id.int].sequence is not None for task_id in transferred):
        connection.execute(statements["leave_sequence"], {"ids": id_array(transferred)})
    return connection.execute(
        statements["change"],
        {
            "claimant": modify.claimant,
            "ids": id_array(entry.ref.task_id for entry in modify.change),
            "queues": text_array(entry.queue or locked[entry.ref.task_id.int].queue for entry in modify.change),
            "sequences": plain_array(
                entry.sequence if entry.ref.task_id in transferred else locked[entry.ref.task_id.int].sequence
                for entry in modify.change
            ),
            # Apart, since the server adds the durations to its own clock.
            "ats": [entry.at if isinstance(entry.at, datetime) else None for entry in modify.change],
            "delays": [entry.at if isinstance(entry.at, timedelta) else None for entry in modify.change],
            "claimed": plain_array(entry.claimed for entry in modify.change),
            "attempts": plain_array(entry.attempt for entry in modify.change),
            "errs": text_array(entry.err for entry in modify.change),
            "values": text_array(_text(entry.value) for entry in modify.change),
        },
    )


def _insert(
    connection: Connection, statements: Statements, insert: Sequence[tuple[TaskId, Insert]], now: datetime
) -> list[Task]:
    if not insert:
        return []
    values = [_text(entry.value) for _, entry in insert]
    new = [
        inserted(task_id, entry, from_json(value), now) for (task_id, entry), value in zip(insert, values, strict=True)
    ]
    connection.execute(
        statements["insert"],
        {
            "now": now,
            "ids": id_array(task.task_id for task in new),
            "queues": text_array(task.queue for task in new),
            "sequences": plain_array(task.sequence for task in new),
            "ats": time_array(task.at for task in new),
            "attempts": plain_array(task.attempt for task in new),
            "errs": text_array(task.err for task in new),
            "values": text_array(values),
        },
    )
    return new


def _text(value: Json) -> str:
    """A value's JSON, which the server can keep. Errors: `ValueError`."""
    text = to_json(value)
    # ASCII: as many bytes as characters.
    if len(text) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES:,} bytes of JSON here, this one has {len(text):,}")
    return text

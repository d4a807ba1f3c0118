"""A modify as one transaction: lock in id order, judge everything, then write or refuse.

Nothing is written before every entry was judged, so a refused modify leaves no trace. What another transaction may
still do after the judgement (insert the same id or sequence) ends in a violation: the caller of `run` starts over
and meets it as a judged failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg

from airflow_parallel_apply.queue.arguments import to_json
from airflow_parallel_apply.queue.judge import (
    Arrival,
    Locked,
    Modify,
    Obstacle,
    arrivals_of,
    judge_arrivals,
    moves,
    raise_if_refused,
    to_announce,
)
from airflow_parallel_apply.queue.model import Insert, Task, TaskId
from airflow_parallel_apply.queue.postgres.connections import Connection
from airflow_parallel_apply.queue.postgres.rows import to_task
from airflow_parallel_apply.queue.postgres.statements import Statements

_Cursor = psycopg.Cursor[tuple[Any, ...]]


def run(connection: Connection, statements: Statements, modify: Modify) -> tuple[Task, ...]:
    """All of it or none; see `Queue.modify`.

    Errors: `DependencyError`; psycopg's unique violation, deadlock and serialization failure, after which the same
    call may be made again.
    """
    # No pipeline: in one the server never counts as idle between statements, and a client that was stopped here would
    # keep its locks for ever instead of until the session's time limit.
    with connection.transaction():
        locked = _lock(connection, statements, modify)
        arrivals = arrivals_of(modify, locked)
        leaving = [ref.task_id for ref in modify.delete] + [arrival.task_id for arrival in arrivals if arrival.move]
        verdict = judge_arrivals(arrivals, _obstacles(connection, statements, arrivals, leaving))
        raise_if_refused(modify, locked, verdict.refused)
        insert = [(task_id, entry) for task_id, entry in modify.insert if task_id not in verdict.skipped]
        if modify.delete:
            connection.execute(statements["delete"], {"ids": [ref.task_id for ref in modify.delete]})
        changed = _change(connection, statements, modify, locked)
        inserted = _insert(connection, statements, insert)
        queues = to_announce(modify, locked, insert)
        if queues:
            connection.execute(statements["notify"], {"channel": statements.channel, "queues": sorted(queues)})
    found = {
        task.task_id: task for cursor in (inserted, changed) if cursor is not None for task in map(to_task, cursor)
    }
    return (
        *(found[task_id] for task_id, _ in insert),
        *(found[entry.ref.task_id] for entry in modify.change),
    )


def _lock(connection: Connection, statements: Statements, modify: Modify) -> dict[TaskId, Locked]:
    if not modify.named:
        return {}
    rows = connection.execute(statements["lock"], {"ids": modify.named})
    return {
        TaskId(task_id): Locked(queue=queue, sequence=sequence, version=version, claimant=claimant, at=at, now=now)
        for task_id, queue, sequence, version, claimant, at, now in rows
    }


def _obstacles(
    connection: Connection, statements: Statements, arrivals: Sequence[Arrival], leaving: Sequence[TaskId]
) -> list[Obstacle]:
    if not arrivals:
        return []
    rows = connection.execute(
        statements["check_arrivals"],
        {
            "ids": [arrival.task_id for arrival in arrivals],
            "queues": [arrival.queue for arrival in arrivals],
            "sequences": [arrival.sequence for arrival in arrivals],
            "leaving": list(leaving),
        },
    )
    return [Obstacle(version=version, taken=taken, mixed=mixed) for version, taken, mixed in rows]


def _change(
    connection: Connection, statements: Statements, modify: Modify, locked: Mapping[TaskId, Locked]
) -> _Cursor | None:
    if not modify.change:
        return None
    moved = {entry.ref.task_id for entry in modify.change if moves(entry, locked)}
    if any(locked[task_id].sequence is not None for task_id in moved):
        connection.execute(statements["leave_sequence"], {"ids": list(moved)})
    return connection.execute(
        statements["change"],
        {
            "claimant": modify.claimant,
            "ids": [entry.ref.task_id for entry in modify.change],
            "queues": [entry.queue or locked[entry.ref.task_id].queue for entry in modify.change],
            "sequences": [
                entry.sequence if entry.ref.task_id in moved else locked[entry.ref.task_id].sequence
                for entry in modify.change
            ],
            **_arrival_times([entry.at for entry in modify.change]),
            "claimed": [entry.claimed for entry in modify.change],
            "attempts": [entry.attempt for entry in modify.change],
            "errs": [entry.err for entry in modify.change],
            "values": [to_json(entry.value) for entry in modify.change],
        },
    )


def _insert(connection: Connection, statements: Statements, insert: Sequence[tuple[TaskId, Insert]]) -> _Cursor | None:
    if not insert:
        return None
    return connection.execute(
        statements["insert"],
        {
            "ids": [task_id for task_id, _ in insert],
            "queues": [entry.queue for _, entry in insert],
            "sequences": [entry.sequence for _, entry in insert],
            **_arrival_times([entry.at for _, entry in insert]),
            "attempts": [entry.attempt for _, entry in insert],
            "errs": [entry.err for _, entry in insert],
            "values": [to_json(entry.value) for _, entry in insert],
        },
    )


def _arrival_times(given: Sequence[datetime | timedelta | None]) -> dict[str, list[Any]]:
    """Apart, since the server adds the durations to its own clock."""
    return {
        "ats": [at if isinstance(at, datetime) else None for at in given],
        "delays": [at if isinstance(at, timedelta) else None for at in given],
    }

"""The queue's protocol on PostgreSQL. The server's clock decides, the server's locks order, nobody polls.

A claim is one statement that skips what others have locked. A waiting claim listens for modifies of its queues and
knows when the next task arrives; it needs a session of its own while it waits, so a pooler between here and the
server must pool by session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_parallel_apply.queue.arguments import MAX_SEQUENCE, check_claim, check_modify, check_renew
from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Insert,
    QueueStats,
    QueueUnavailable,
    Task,
    TaskId,
    TaskRef,
)
from airflow_parallel_apply.queue.postgres.arrays import text_array
from airflow_parallel_apply.queue.postgres.connections import Connection, Connections
from airflow_parallel_apply.queue.postgres.modify import finish, run
from airflow_parallel_apply.queue.postgres.rows import LockedRow, to_task
from airflow_parallel_apply.queue.postgres.statements import DEFAULT_SCHEMA, Statements
from airflow_parallel_apply.queue.preconditions import Modify, not_ours
from airflow_parallel_apply.queue.protocol import Queue

_MAX_RACES: Final = 10
"""Modifies that insert the same ids at the same time: one wins each round."""

_PAST_DUE_SECONDS: Final = 0.001
_FIRST_PAUSE_SECONDS: Final = 0.005
_LAST_PAUSE_SECONDS: Final = 0.25

_CLOSE_CHECK_SECONDS: Final = 1.0
"""How often a waiting thread looks whether the queue was closed; it asks the server nothing."""


class PostgresQueue(Queue):
    """Connects at the first call; never changes the schema (`migrate` does). `clock` measures timeouts and
    silence only, in seconds, monotonic.
    """

    def __init__(self, dsn: str, *, schema: str = DEFAULT_SCHEMA, clock: Callable[[], float] = time.monotonic) -> None:
        self._statements = Statements(schema)
        self._connections = Connections(dsn, self._statements, clock=clock)
        self._clock = clock

    def claim_many(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        limit: int,
        timeout: timedelta = timedelta(0),
        wake: Sequence[str] = (),
    ) -> tuple[Task, ...]:
        check_claim(queues, claimant, lease, limit)
        deadline = self._clock() + timeout.total_seconds()
        asked = {"queues": list(queues), "claimant": claimant, "lease": lease, "limit": limit}
        with self._connections.use() as connection:
            claimed = self._claim_now(connection, asked)
        if claimed or self._clock() >= deadline:
            return claimed
        with self._connections.listen() as connection:
            pause = _FIRST_PAUSE_SECONDS
            while True:
                claimed = self._claim_now(connection, asked)
                left = deadline - self._clock()
                if claimed or left <= 0:
                    return claimed
                due = self._seconds_to_next_arrival(connection, queues)
                if due is None:
                    seconds = left
                elif due > 0:
                    seconds = min(due + _PAST_DUE_SECONDS, left)
                    pause = _FIRST_PAUSE_SECONDS
                else:
                    # Locked by somebody who may roll back, and a rollback announces nothing.
                    seconds = min(pause, left)
                    pause = min(2 * pause, _LAST_PAUSE_SECONDS)
                if not self._wait(connection, [*queues, *wake], seconds).isdisjoint(wake):
                    return self._claim_now(connection, asked)

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        """Also `ValueError`, for a call that no state of the queue could make right."""
        check_modify(claimant, insert, change, delete, depend)
        if not (insert or change or delete or depend):
            return ()
        asked = Modify.asked(claimant, insert, change, delete, depend)
        with self._connections.use() as connection:
            for _ in range(_MAX_RACES):
                try:
                    if finish(connection, self._statements, asked):
                        return ()
                    return run(connection, self._statements, asked)
                except (
                    psycopg.errors.UniqueViolation,
                    psycopg.errors.DeadlockDetected,
                    psycopg.errors.SerializationFailure,
                ):
                    continue
        raise QueueUnavailable(f"a modify collided with others {_MAX_RACES} times, nothing was done")

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        """The value stays as it is in the table."""
        check_renew(claimant, lease)
        with self._connections.use() as connection:
            row = connection.execute(
                self._statements["renew"],
                {"id": task.task_id, "version": task.version, "claimant": claimant, "lease": lease},
            ).fetchone()
            if row is None:
                raise DependencyError(changes=(not_ours(task.ref, self._holder(connection, task.task_id), claimant),))
            renewed = to_task(row)
            if renewed.at < task.at:
                connection.execute(
                    self._statements["notify"],
                    {"channel": self._statements.channel, "queues": text_array([renewed.queue])},
                )
        return renewed

    def tasks(
        self,
        queue: str,
        *,
        claimant: str | None = None,
        limit: int | None = None,
        ids: Sequence[TaskId] = (),
        after: Task | None = None,
        omit_values: bool = False,
    ) -> tuple[Task, ...]:
        if after is not None and after.sequence == MAX_SEQUENCE:
            return ()
        with self._connections.use() as connection:
            rows = connection.execute(
                self._statements["tasks"],
                {
                    "queue": queue,
                    "claimant": claimant,
                    "limit": limit,
                    "ids": list(ids) or None,
                    "from_sequence": None if after is None or after.sequence is None else after.sequence + 1,
                    "after_at": None if after is None or after.sequence is not None else after.at,
                    "after_id": None if after is None else after.task_id,
                    "omit_values": omit_values,
                },
            ).fetchall()
        return tuple(map(to_task, rows))

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        with self._connections.use() as connection:
            rows = connection.execute(
                self._statements["queue_stats"], {"prefix": list(prefix), "exact": list(exact), "limit": limit}
            ).fetchall()
        return tuple(
            QueueStats(
                queue=queue, size=size, claimed=claimed, available=available, future=future, max_claims=max_claims
            )
            for queue, size, claimed, available, future, max_claims in rows
        )

    def wait_empty(self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), timeout: timedelta) -> bool:
        deadline = self._clock() + timeout.total_seconds()
        with self._connections.listen() as connection:
            while True:
                row = connection.execute(
                    self._statements["any_task"], {"prefix": list(prefix), "exact": list(exact)}
                ).fetchone()
                if row is not None and not row[0]:
                    return True
                left = deadline - self._clock()
                if left <= 0:
                    return False
                self._wait(connection, None, left)

    def close(self) -> None:
        """Calls that wait in other threads end with `QueueError` within a second or so."""
        self._connections.close()

    def _claim_now(self, connection: Connection, asked: Mapping[str, Any]) -> tuple[Task, ...]:
        # All at once: the cursor gives one after the other in Python.
        return tuple(map(to_task, connection.execute(self._statements["claim"], asked).fetchall()))

    def _seconds_to_next_arrival(self, connection: Connection, queues: Sequence[str]) -> float | None:
        row = connection.execute(self._statements["next_arrival"], {"queues": list(queues)}).fetchone()
        return None if row is None else row[0]

    def _wait(self, connection: Connection, queues: Sequence[str] | None, seconds: float) -> frozenset[str]:
        """Wait until a modify of one of the queues (None: of any) is announced, or the time is over; return those
        announced.
        """
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._connections.check_open()
            # To the end: what one modify announces comes together, and what is not taken here is lost.
            notices = list(connection.notifies(timeout=min(left, _CLOSE_CHECK_SECONDS), stop_after=1))
            heard = frozenset(notice.payload for notice in notices if queues is None or notice.payload in queues)
            if heard:
                return heard
        return frozenset()

    def _holder(self, connection: Connection, task_id: TaskId) -> LockedRow | None:
        row = connection.execute(self._statements["holder"], {"id": task_id}).fetchone()
        if row is None:
            return None
        queue, sequence, version, claimant, at = row
        return LockedRow(queue=queue, sequence=sequence, version=version, claimant=claimant, at=at)

"""The memory backend's core: what each call does to the tasks, under which locks. It never waits, for a task or a disk.

Values are JSON text here: the service hands them on as they came. Each call returns the journal position up to which
its outcome has to be durable before anybody may rely on it; `backend.MemoryQueue` waits for that.

- *Claim*: one queue's lock at a time, in random order of the queues.
- *Modify*: all its queues' locks at once, taken in name order; judged whole, journalled, then applied.
- *Listing and statistics*: a queue's lock for a page of a listing or a few look-ups, one queue at a time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_parallel_apply.queue.arguments import check_claim, check_modify, check_renew
from airflow_parallel_apply.queue.judge import (
    Arrival,
    Arrivals,
    Locked,
    Modify,
    Obstacle,
    arrival_time,
    arrivals_of,
    inserted,
    judge_arrivals,
    moves,
    not_ours,
    raise_if_refused,
    to_announce,
)
from airflow_parallel_apply.queue.memory.journal import Forgetful, Journal
from airflow_parallel_apply.queue.memory.shelf import Shelf, place_of
from airflow_parallel_apply.queue.memory.shelves import Shelves
from airflow_parallel_apply.queue.memory.watches import Watch, Watches
from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Insert,
    QueueFull,
    QueueStats,
    QueueUnavailable,
    Task,
    TaskId,
    TaskRef,
)

PAGE_TASKS: Final = 500
"""Tasks that a listing takes from a queue under one lock: well below a millisecond."""

_MAX_RACES: Final = 1000
"""Times that tasks may go elsewhere between finding their queues and holding them; each time another one went on."""

_CLOCK_CHECK_SECONDS: Final = 10.0
"""Longest wait for an arrival without looking at the clock again, which somebody may have set."""


class Engine:
    """All queues. `clock` tells the time in UTC; no other clock decides what has arrived. `max_queue_tasks`: a modify
    that would leave a queue with more is refused (`QueueFull`).
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        clock: Callable[[], datetime] | None = None,
        max_queue_tasks: int | None = None,
    ) -> None:
        self.journal: Journal = journal or Forgetful()
        self._max_queue_tasks = max_queue_tasks
        self._clock = clock or (lambda: datetime.now(UTC))
        self.shelves = Shelves()
        self.watches = Watches()

    def claim_now(self, queues: Sequence[str], *, claimant: str, lease: timedelta, limit: int = 1) -> tuple[Task, ...]:
        """Up to `limit` tasks, without waiting."""
        check_claim(queues, claimant, lease, limit)
        names = list(dict.fromkeys(queues))
        if len(names) > 1:
            random.shuffle(names)
        claimed: tuple[Task, ...] = ()
        for name in names:
            claimed += self._claim_from(name, claimant, lease, limit - len(claimed))
            if len(claimed) == limit:
                break
        return claimed

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        """The inserts' and changes' values are JSON text."""
        check_modify(claimant, insert, change, delete, depend)
        if not (insert or change or delete or depend):
            return ()
        asked = Modify.asked(claimant, insert, change, delete, depend)
        for _ in range(_MAX_RACES):
            with self.shelves.hold(lambda where: _involved(asked, where)) as shelves:
                done = None if shelves is None else self._modify_held(asked, shelves)
            if done is not None:
                tasks, announced = done
                self.watches.announce(announced)
                return tasks
        raise QueueUnavailable(f"a modify collided with others {_MAX_RACES} times, nothing was done")

    def renew(self, ref: TaskRef, *, claimant: str, lease: timedelta) -> Task:
        check_renew(claimant, lease)
        for _ in range(_MAX_RACES):
            with self.shelves.hold(lambda where: _queues_of([ref.task_id], where)) as shelves:
                if shelves is None:
                    continue
                now = self._clock()
                found = next((task for shelf in shelves.values() if (task := shelf.get(ref.task_id))), None)
                if found is None or found.version != ref.version or found.claimant != claimant:
                    raise DependencyError(changes=(not_ours(ref, _locked(found, now) if found else None, claimant),))
                renewed = replace(found, version=found.version + 1, at=now + lease, modified=now)
                self.journal.append([renewed], ())
                shelves[found.queue].put(renewed)
            if renewed.at < found.at:
                # Sooner than those who wait were told.
                self.watches.announce([renewed.queue])
            return renewed
        raise QueueUnavailable(f"a renewal collided with others {_MAX_RACES} times, nothing was done")

    def tasks(
        self, queue: str, *, claimant: str | None = None, ids: Sequence[TaskId] = (), after: Task | None = None
    ) -> Iterator[Task]:
        """In order, page by page: what changes in a queue of more than a page meanwhile is met before or after its
        change, or (when it moves to where the listing has been) not at all.
        """
        if ids:
            yield from self._named(queue, claimant, ids, after)
            return
        place = None if after is None else place_of(after)
        while True:
            shelf = self.shelves.find(queue)
            if shelf is None:
                return
            with shelf.lock:
                page = shelf.page(place, PAGE_TASKS)
            yield from (task for task in page if claimant is None or task.claimant == claimant)
            if len(page) < PAGE_TASKS:
                return
            place = place_of(page[-1])

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        found: list[QueueStats] = []
        for name in self._matching(prefix, exact):
            if limit is not None and len(found) >= limit:
                break
            shelf = self.shelves.find(name)
            if shelf is not None:
                with shelf.lock:
                    if len(shelf):
                        found.append(shelf.stats(self._clock()))
        return tuple(found)

    def claim_steps(
        self,
        watch: Watch,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        limit: int,
        wake: Sequence[str],
        seconds_left: Callable[[], float],
    ) -> Generator[float, None, tuple[Task, ...]]:
        """A waiting claim, for whoever can wait: yields how many seconds to wait at most for the watch (which is one
        of `queues` and `wake`), returns the tasks.
        """
        while True:
            claimed = self.claim_now(queues, claimant=claimant, lease=lease, limit=limit)
            left = seconds_left()
            if claimed or left <= 0:
                return claimed
            due = self._seconds_to_next_arrival(queues)
            if due is None or due > 0:
                yield min(left, _CLOCK_CHECK_SECONDS if due is None else due, _CLOCK_CHECK_SECONDS)
            if not watch.heard().isdisjoint(wake):
                return self.claim_now(queues, claimant=claimant, lease=lease, limit=limit)

    def empty_steps(
        self, watch: Watch, prefix: Sequence[str], exact: Sequence[str], seconds_left: Callable[[], float]
    ) -> Generator[float, None, bool]:
        """As `claim_steps`, until no matching queue has a task; the watch is one of all queues."""
        while True:
            watch.heard()
            if not self.queue_stats(prefix=prefix, exact=exact, limit=1):
                return True
            left = seconds_left()
            if left <= 0:
                return False
            yield left

    def _claim_from(self, name: str, claimant: str, lease: timedelta, limit: int) -> tuple[Task, ...]:
        while (shelf := self.shelves.find(name)) is not None:
            with shelf.lock:
                if shelf.removed:
                    # Another one may stand in its place by now; each round means that a queue came and went.
                    continue
                now = self._clock()
                until = now + lease
                claimed = tuple(_claimed(task, claimant, now, until) for task in shelf.claimable(now, limit))
                if claimed:
                    self.journal.append(claimed, ())
                for task in claimed:
                    shelf.put(task)
                return claimed
        return ()

    def _modify_held(self, asked: Modify, shelves: Mapping[str, Shelf]) -> tuple[tuple[Task, ...], set[str]] | None:
        """Judge and apply, all locks held: the tasks, and the queues to announce. None: an id was taken meanwhile."""
        now = self._clock()
        before = self._found(asked, shelves)
        locked = {task_id: _locked(before[task_id], now) for task_id in asked.named if task_id in before}
        verdict = _judge(asked, locked, before, shelves)
        raise_if_refused(asked, locked, verdict.refused)
        insert = [(task_id, entry) for task_id, entry in asked.insert if task_id not in verdict.skipped]
        new = [inserted(task_id, entry, entry.value, now) for task_id, entry in insert]
        changed = [_changed(before[entry.ref.task_id], entry, asked.claimant, now, locked) for entry in asked.change]
        self._check_room(shelves, Counter(task.queue for task in new))
        queue_of = {task.task_id: task.queue for task in new}
        with self.shelves.reserved(queue_of, queue_of.__getitem__) as free:
            if not free:
                return None
            deleted = [ref.task_id for ref in asked.delete]
            if new or changed or deleted:
                self.journal.append([*new, *changed], deleted)
        for task_id in (*deleted, *(task.task_id for task in changed)):
            shelves[before[task_id].queue].remove(task_id)
        self.shelves.forget(deleted)
        self.shelves.move(task for task in changed if task.queue != before[task.task_id].queue)
        for task in (*new, *changed):
            shelves[task.queue].put(task)
        return (*new, *changed), to_announce(asked, locked, insert)

    def _check_room(self, shelves: Mapping[str, Shelf], inserted: Mapping[str, int]) -> None:
        """Only what is new counts: who moves or deletes tasks is never held up by a queue that is full."""
        if self._max_queue_tasks is None:
            return
        for name, count in inserted.items():
            size = len(shelves[name])
            if size + count > self._max_queue_tasks:
                raise QueueFull(
                    f"queue {name} has {size} tasks and may have {self._max_queue_tasks}: no room for {count} more; "
                    "nothing was done"
                )

    def _found(self, asked: Modify, shelves: Mapping[str, Shelf]) -> dict[TaskId, Task]:
        """The tasks that a modify names, or has an insert for. One that came just now into a queue that we do not hold
        is none yet: its id is found taken when it is reserved.
        """
        where = self.shelves.where([*asked.named, *(task_id for task_id, _ in asked.insert)])
        held = ((task_id, shelves[name].get(task_id)) for task_id, name in where.items() if name in shelves)
        return {task_id: task for task_id, task in held if task is not None}

    def _named(self, queue: str, claimant: str | None, ids: Sequence[TaskId], after: Task | None) -> list[Task]:
        shelf = self.shelves.find(queue)
        if shelf is None:
            return []
        with shelf.lock:
            found = [task for task_id in dict.fromkeys(ids) if (task := shelf.get(task_id)) is not None]
        listed = sorted((task for task in found if claimant is None or task.claimant == claimant), key=place_of)
        return [task for task in listed if after is None or place_of(task) > place_of(after)]

    def _matching(self, prefix: Sequence[str], exact: Sequence[str]) -> list[str]:
        if not prefix and not exact:
            return self.shelves.names()
        if not prefix:
            return sorted(set(exact))
        starts, wanted = tuple(prefix), frozenset(exact)
        return [name for name in self.shelves.names() if name in wanted or name.startswith(starts)]

    def _seconds_to_next_arrival(self, queues: Sequence[str]) -> float | None:
        arrivals: list[datetime] = []
        for name in queues:
            shelf = self.shelves.find(name)
            if shelf is not None:
                with shelf.lock:
                    if shelf.head is not None:
                        arrivals.append(shelf.head.at)
        return (min(arrivals) - self._clock()).total_seconds() if arrivals else None


def _involved(asked: Modify, where: Mapping[TaskId, str]) -> set[str]:
    """Where tasks are, where they go, and where a task is that has an inserted one's id."""
    queues = {entry.queue for _, entry in asked.insert}
    queues |= {entry.queue for entry in asked.change if entry.queue is not None}
    return queues | _queues_of((*asked.named, *(task_id for task_id, _ in asked.insert)), where)


def _queues_of(task_ids: Sequence[TaskId], where: Mapping[TaskId, str]) -> set[str]:
    return {where[task_id] for task_id in task_ids if task_id in where}


def _locked(task: Task, now: datetime) -> Locked:
    return Locked(
        queue=task.queue, sequence=task.sequence, version=task.version, claimant=task.claimant, at=task.at, now=now
    )


def _judge(
    asked: Modify, locked: Mapping[TaskId, Locked], existing: Mapping[TaskId, Task], shelves: Mapping[str, Shelf]
) -> Arrivals:
    arrivals = arrivals_of(asked, locked)
    leaving = frozenset(
        [ref.task_id for ref in asked.delete] + [arrival.task_id for arrival in arrivals if arrival.move]
    )
    left: dict[str, int] = {}
    for task_id in leaving & locked.keys():
        left[locked[task_id].queue] = left.get(locked[task_id].queue, 0) + 1
    answers = {
        question: _obstacle(
            arrival, existing.get(arrival.task_id), shelves[arrival.queue], leaving, left.get(arrival.queue, 0)
        )
        for question, arrival in {arrival.question: arrival for arrival in arrivals}.items()
    }
    return judge_arrivals(arrivals, [answers[arrival.question] for arrival in arrivals])


def _obstacle(arrival: Arrival, existing: Task | None, shelf: Shelf, leaving: frozenset[TaskId], left: int) -> Obstacle:
    """`left`: how many tasks leave the queue that this one enters."""
    sequence = arrival.sequence
    return Obstacle(
        version=None if existing is None else existing.version,
        taken=sequence is not None and shelf.is_strict and shelf.has_place_taken(sequence, leaving),
        mixed=len(shelf) > left and shelf.is_strict is (sequence is None),
    )


def _claimed(task: Task, claimant: str, now: datetime, until: datetime) -> Task:
    # Field by field: `replace` takes three times as long, and this is what the engine does most.
    return Task(
        task_id=task.task_id,
        queue=task.queue,
        version=task.version + 1,
        sequence=task.sequence,
        at=until,
        claimant=claimant,
        claims=task.claims + 1,
        attempt=task.attempt,
        err=task.err,
        value=task.value,
        created=task.created,
        modified=now,
    )


def _changed(before: Task, entry: Change, claimant: str, now: datetime, locked: Mapping[TaskId, Locked]) -> Task:
    at = arrival_time(entry.at, now)
    return Task(
        task_id=before.task_id,
        queue=entry.queue or before.queue,
        version=before.version + 1,
        sequence=entry.sequence if moves(entry, locked) else before.sequence,
        at=at,
        claimant=claimant if entry.claimed and at > now else None,
        claims=before.claims,
        attempt=before.attempt if entry.attempt is None else entry.attempt,
        err=before.err if entry.err is None else entry.err,
        value=entry.value,
        created=before.created,
        modified=now,
    )

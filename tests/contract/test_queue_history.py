"""The observations of concurrent clients have an order, in which each call did all that it did at one moment,
between its start and its end.

Versions make it checkable: a call that consumed version v of a task stands behind the one that made v, and before the
one that made v + 1; so does one that only depended on v, or was refused because of it. With the calls' real times these
are edges of a graph, and an order exists if it has no circle.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from uuid import UUID

import pytest

from airflow_parallel_apply.queue import (
    Change,
    DependencyError,
    Failure,
    FailureReason,
    Insert,
    Queue,
    Task,
    TaskId,
    TaskRef,
)
from tests.contract.queue_backends import Open

LEASE = timedelta(hours=1)
QUEUES = ("a", "b", "c")
CLIENTS = 4
CALLS = 60


@dataclass(kw_only=True)
class Call:
    """One call: its effect on versions, and when it may have had it."""

    started: float
    ended: float = 0.0
    made: list[tuple[TaskId, int]] = field(default_factory=list)
    ended_versions: list[tuple[TaskId, int]] = field(default_factory=list)
    """Versions that are no more since: consumed by a change, a claim or a delete."""
    seen: list[tuple[TaskId, int]] = field(default_factory=list)
    missed: list[TaskId] = field(default_factory=list)
    """Tasks that it was told are gone."""


class Client:
    """One client's random walk; `known` is shared by all, stale on purpose."""

    def __init__(self, queue: Queue, name: str, known: dict[TaskId, Task], seed: int) -> None:
        self.queue, self.name, self.known = queue, name, known
        self.random = random.Random(seed)
        self.calls: list[Call] = []

    def walk(self) -> list[Call]:
        for _ in range(CALLS):
            call = Call(started=time.monotonic())
            (self.claim if self.random.random() < 0.25 else self.modify)(call)
            call.ended = time.monotonic()
            self.calls.append(call)
        return self.calls

    def claim(self, call: Call) -> None:
        task = self.queue.try_claim(self.random.sample(QUEUES, 2), claimant=self.name, lease=LEASE)
        if task is not None:
            self.done(call, [task])

    def modify(self, call: Call) -> None:
        picked = self.random.sample(known := list(self.known.values()), min(len(known), 3))
        insert = [Insert(queue=name) for name in QUEUES if self.random.random() < 0.3]
        change, delete, depend = [], [], []
        for task in picked:
            match self.random.choice(["change", "move", "delete", "depend"]):
                case "change":
                    change.append(Change(ref=task.ref, value=self.name))
                case "move":
                    change.append(Change(ref=task.ref, value=self.name, queue=self.random.choice(QUEUES)))
                case "delete":
                    delete.append(task.ref)
                case _:
                    depend.append(task.ref)
        try:
            done = self.queue.modify(claimant=self.name, insert=insert, change=change, delete=delete, depend=depend)
        except DependencyError as error:
            self.refused(call, [*error.changes, *error.deletes, *error.depends])
            return
        self.done(call, done, delete=delete, depend=depend)

    def done(
        self, call: Call, tasks: Iterable[Task], delete: Iterable[TaskRef] = (), depend: Iterable[TaskRef] = ()
    ) -> None:
        for task in tasks:
            call.made.append((task.task_id, task.version))
            if task.version:
                call.ended_versions.append((task.task_id, task.version - 1))
            self.known[task.task_id] = task
        call.ended_versions += [(ref.task_id, ref.version) for ref in delete]
        call.seen += [(ref.task_id, ref.version) for ref in depend]
        for ref in delete:
            self.known.pop(ref.task_id, None)

    def refused(self, call: Call, failures: Iterable[Failure]) -> None:
        for failure in failures:
            if failure.version is not None:
                call.seen.append((failure.task_id, failure.version))
            elif failure.reason is FailureReason.MISSING:
                call.missed.append(failure.task_id)


def order_of(calls: list[Call]) -> list[int]:
    """The calls in an order that explains them. Errors: `CycleError`, there is none; `AssertionError`, for a version
    that two calls made, or ended.
    """
    made_by: dict[tuple[TaskId, int], int] = {}
    ended_by: dict[tuple[TaskId, int], int] = {}
    for number, call in enumerate(calls):
        for index, versions in ((made_by, call.made), (ended_by, call.ended_versions)):
            for version in versions:
                assert index.setdefault(version, number) == number, f"two calls: {version}"
    last_of = {
        task_id: ended_by[task_id, version] for task_id, version in ended_by if (task_id, version + 1) not in made_by
    }
    graph: TopologicalSorter[int] = TopologicalSorter()
    for number, call in enumerate(calls):
        behind = {made_by[version] for version in (*call.ended_versions, *call.seen)}
        behind |= {last_of[task_id] for task_id in call.missed}
        behind |= {other for other, one in enumerate(calls) if one.ended < call.started}
        graph.add(number, *(behind - {number}))
        for version in call.seen:
            if version in ended_by and ended_by[version] != number:
                graph.add(ended_by[version], number)
    return list(graph.static_order())


def test_what_concurrent_clients_saw_has_an_order(open_client: Open) -> None:
    known: dict[TaskId, Task] = {}
    first = Client(open_client(), "first", known, 0)
    call = Call(started=time.monotonic())
    first.done(call, first.queue.modify(claimant="first", insert=[Insert(queue=name) for name in QUEUES * 4]))
    call.ended = time.monotonic()
    clients = [Client(open_client(), f"client {number}", known, number) for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        calls = [call, *(one for walked in pool.map(Client.walk, clients) for one in walked)]
    assert len(order_of(calls)) == len(calls)
    # What is left is what the calls, in that order, leave.
    left = {version for one in calls for version in one.made} - {
        version for one in calls for version in one.ended_versions
    }
    assert {(task.task_id, task.version) for name in QUEUES for task in first.queue.tasks(name)} == left
    assert any(one.made for one in calls[1:])
    assert any(one.seen for one in calls)


def test_a_history_without_an_order_is_found() -> None:
    """The check itself: a depend that came back after the version it saw was replaced, as everybody had seen."""
    task_id = TaskId(UUID(int=7))
    made = Call(started=0, ended=1, made=[(task_id, 0)])
    changed = Call(started=2, ended=3, made=[(task_id, 1)], ended_versions=[(task_id, 0)])
    late = Call(started=4, ended=5, seen=[(task_id, 0)])
    assert order_of([made, changed]) == [0, 1]
    with pytest.raises(CycleError):
        order_of([made, changed, late])
    with pytest.raises(AssertionError, match="two calls"):
        order_of([made, changed, Call(started=0, ended=9, ended_versions=[(task_id, 0)])])

"""Any sequence of calls gives what a dictionary in memory would give: claims of one and of many, renewals, leases that
end, and modifies over several queues with every way to be refused.

Nothing arrives while it runs, so that no clock decides: a lease is of nine hours, or has ended when it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from airflow_parallel_apply.queue import (
    Change,
    DependencyError,
    Failure,
    FailureReason,
    Insert,
    Queue,
    QueueStats,
    Task,
    TaskId,
    TaskRef,
)
from tests.contract.queue_backends import Open

LEASES = st.sampled_from([timedelta(hours=9), timedelta(hours=9), timedelta(0)])
NEVER = datetime(9000, 1, 1, tzinfo=UTC)
NAMESPACE = UUID(int=1)
QUEUES = ("a", "b", "c")
CLAIMANTS = st.sampled_from(["ann", "bob"])
NUMBERS = st.integers(0, 9)
"""Eight tasks are there at first."""
SEQUENCES = st.sampled_from([None, None, 0, 1, 2, 3])
"""Queues are strict or spread as it happens, and wanted as the other kind too."""
ARRIVALS = st.sampled_from([None, NEVER, timedelta(hours=-1), timedelta(hours=9)])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a modify."""

    number: int
    what: str
    queue: str
    sequence: int | None
    at: datetime | timedelta | None
    stale: bool


ENTRIES = st.builds(
    Entry,
    number=NUMBERS,
    what=st.sampled_from(["change", "delay", "move", "move", "insert", "skip", "delete", "depend"]),
    queue=st.sampled_from(QUEUES),
    sequence=SEQUENCES,
    at=ARRIVALS,
    stale=st.sampled_from([False] * 12 + [True]),
)


class Model:
    """The tasks by id, as the backend last returned them."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, Task] = {}

    def of(self, queue: str) -> list[Task]:
        tasks = [task for task in self.tasks.values() if task.queue == queue]
        return sorted(tasks, key=lambda task: (task.sequence or 0, task.at, task.task_id))

    def free(self, task: Task) -> bool:
        return task.at < datetime.now(UTC) + timedelta(hours=4)

    def claimable(self, queue: str) -> list[Task]:
        """Tasks that a claim may give: the head of a strict queue, any that is free of a spread one."""
        tasks = self.of(queue)
        candidates = tasks[:1] if tasks and tasks[0].sequence is not None else tasks
        return [task for task in candidates if self.free(task)]

    def failure(self, ref: TaskRef, claimant: str | None) -> FailureReason | None:
        task = self.tasks.get(ref.task_id)
        if task is None:
            return FailureReason.MISSING
        if task.version != ref.version:
            return FailureReason.WRONG_VERSION
        if claimant is not None and not self.free(task) and task.claimant not in (None, claimant):
            return FailureReason.CLAIMED
        return None

    def refused(
        self, claimant: str, insert: list[Insert], change: list[Change], delete: list[TaskRef], depend: list[TaskRef]
    ) -> dict[TaskId, FailureReason]:
        """Why, by id; empty when it may be done."""
        found = {ref.task_id: self.failure(ref, claimant) for ref in delete}
        found |= {ref.task_id: self.failure(ref, None) for ref in depend}
        moves = [one for one in change if one.ref.task_id in self.tasks and one.queue not in (None, self.queue(one))]
        gone = {ref.task_id for ref in delete} | {one.ref.task_id for one in moves}
        kinds: dict[str, bool] = {}
        places: set[tuple[str, int | None]] = set()
        for task in self.tasks.values():
            if task.task_id not in gone:
                kinds[task.queue] = task.sequence is None
                places.add((task.queue, task.sequence))
        arrivals = [(one.task_id, one) for one in insert if one.task_id not in self.tasks]
        for task_id, one in (*arrivals, *((one.ref.task_id, one) for one in moves)):
            if kinds.setdefault(one.queue, one.sequence is None) != (one.sequence is None):
                found[task_id] = FailureReason.MIXED
            elif one.sequence is not None and (one.queue, one.sequence) in places:
                found[task_id] = FailureReason.TAKEN
            else:
                places.add((one.queue, one.sequence))
        for one in insert:
            if one.task_id in self.tasks and not one.skip_colliding:
                found[one.task_id] = FailureReason.COLLIDING
        for one in change:
            reason = self.failure(one.ref, claimant)
            stays = one not in moves and one.sequence not in (
                None,
                getattr(self.tasks.get(one.ref.task_id), "sequence", None),
            )
            if reason is not None or stays:
                found[one.ref.task_id] = reason or FailureReason.IMMUTABLE
        return {task_id: reason for task_id, reason in found.items() if reason is not None}

    def queue(self, one: Change) -> str:
        return self.tasks[one.ref.task_id].queue

    def stats(self) -> tuple[QueueStats, ...]:
        found = []
        for queue in sorted({task.queue for task in self.tasks.values()}):
            tasks = self.of(queue)
            available = sum(self.free(task) for task in tasks)
            claimed = sum(not self.free(task) and task.claimant is not None for task in tasks)
            found.append(
                QueueStats(
                    queue=queue,
                    size=len(tasks),
                    claimed=claimed,
                    available=available,
                    future=len(tasks) - available - claimed,
                    max_claims=max(task.claims for task in tasks),
                )
            )
        return tuple(found)


def machine_of(open_client: Open) -> type[RuleBasedStateMachine]:
    queue: Queue = open_client()

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            for name in QUEUES:
                queue.modify(claimant="ann", delete=self.freed(queue.tasks(name)))

        def freed(self, tasks: Iterable[Task]) -> list[TaskRef]:
            """The last example's tasks, from whoever claimed them."""
            refs = []
            for task in tasks:
                (free,) = queue.modify(claimant=task.claimant or "ann", change=[Change(ref=task.ref, value=None)])
                refs.append(free.ref)
            return refs

        def id_of(self, number: int) -> TaskId:
            return TaskId(uuid5(NAMESPACE, str(number)))

        def ref_of(self, number: int, *, stale: bool) -> TaskRef:
            task = self.model.tasks.get(self.id_of(number))
            version = 0 if task is None else task.version
            return TaskRef(task_id=self.id_of(number), version=version + stale)

        @initialize(strict=st.booleans())
        def put(self, strict: bool) -> None:
            """Most of what follows has to do with tasks that are there."""
            insert = [
                Insert(
                    queue=QUEUES[number % 2],
                    value=[number],
                    sequence=number if number % 2 and strict else None,
                    task_id=self.id_of(number),
                )
                for number in range(8)
            ]
            self.model.tasks = {task.task_id: task for task in queue.modify(claimant="ann", insert=insert)}

        @rule(
            names=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3), claimant=CLAIMANTS, lease=LEASES,
            limit=st.integers(1, 4),
        )  # fmt: skip
        def claim(self, names: list[str], claimant: str, lease: timedelta, limit: int) -> None:
            possible = {task.task_id: task for name in set(names) for task in self.model.claimable(name)}
            claimed = queue.claim_many(names, claimant=claimant, lease=lease, limit=limit)
            assert len(claimed) == min(limit, len(possible))
            for task in claimed:
                before = possible.pop(task.task_id)
                assert (task.version, task.claims) == (before.version + 1, before.claims + 1)
                assert (task.claimant, task.value, task.queue) == (claimant, before.value, before.queue)
                assert self.model.free(task) == (lease == timedelta(0))
                self.model.tasks[task.task_id] = task

        @rule(number=NUMBERS, claimant=CLAIMANTS, lease=LEASES, stale=st.booleans())
        def renew(self, number: int, claimant: str, lease: timedelta, stale: bool) -> None:
            task = self.model.tasks.get(self.id_of(number))
            if task is None:
                return
            held = replace(task, version=task.version - stale)
            if task.claimant == claimant and not stale:
                renewed = queue.renew(held, claimant=claimant, lease=lease)
                assert renewed == replace(task, version=task.version + 1, at=renewed.at, modified=renewed.modified)
                self.model.tasks[task.task_id] = renewed
                return
            with pytest.raises(DependencyError) as refused:
                queue.renew(held, claimant=claimant, lease=lease)
            (failure,) = refused.value.changes
            if stale:
                assert failure.reason is FailureReason.WRONG_VERSION
            elif task.claimant is None:
                assert failure.reason is FailureReason.NOT_HELD
            else:
                assert (failure.reason, failure.claimant, failure.until) == (
                    FailureReason.CLAIMED,
                    task.claimant,
                    task.at,
                )
            assert failure.version == task.version

        @rule(
            claimant=CLAIMANTS,
            entries=st.lists(ENTRIES, min_size=1, max_size=3, unique_by=lambda entry: entry.number),
        )
        def modify(self, claimant: str, entries: list[Entry]) -> None:
            insert, change, delete, depend = [], [], [], []
            for one in entries:
                ref = self.ref_of(one.number, stale=one.stale)
                match one.what:
                    case "insert" | "skip":
                        skip = one.what == "skip"
                        insert.append(
                            Insert(
                                queue=one.queue,
                                value=[one.number],
                                sequence=one.sequence,
                                at=one.at,
                                task_id=ref.task_id,
                                skip_colliding=skip,
                                attempt=one.number,
                                err=one.what,
                            )
                        )
                    case "change" | "delay":
                        change.append(Change(ref=ref, value=one.what, at=one.at, claimed=one.what == "change"))
                    case "move":
                        change.append(
                            Change(
                                ref=ref, value=one.what, at=one.at, queue=one.queue, sequence=one.sequence, attempt=7
                            )
                        )
                    case "delete":
                        delete.append(ref)
                    case _:
                        depend.append(ref)
            expected = self.model.refused(claimant, insert, change, delete, depend)
            try:
                done = queue.modify(claimant=claimant, insert=insert, change=change, delete=delete, depend=depend)
            except DependencyError as error:
                failures: tuple[Failure, ...] = (*error.inserts, *error.changes, *error.deletes, *error.depends)
                assert {failure.task_id: failure.reason for failure in failures} == expected
                for failure in failures:
                    task = self.model.tasks.get(failure.task_id)
                    assert failure.version == (None if task is None else task.version)
                    if failure.reason is FailureReason.CLAIMED and task is not None:
                        assert (failure.claimant, failure.until) == (task.claimant, task.at)
                return
            assert expected == {}
            self.check_done(claimant, insert, change, done)
            for ref in delete:
                del self.model.tasks[ref.task_id]
            self.model.tasks.update({task.task_id: task for task in done})

        def check_done(self, claimant: str, insert: list[Insert], change: list[Change], done: tuple[Task, ...]) -> None:
            new = [entry for entry in insert if entry.task_id not in self.model.tasks]
            assert [task.task_id for task in done] == [
                *(entry.task_id for entry in new),
                *(entry.ref.task_id for entry in change),
            ]
            for entry, task in zip(new, done, strict=False):
                asked = (entry.queue, entry.sequence, 0, entry.value, 0, None, entry.attempt, entry.err)
                assert asked == (
                    task.queue, task.sequence, task.version, task.value, task.claims, task.claimant, task.attempt,
                    task.err,
                )  # fmt: skip
                assert self.model.free(task) == (entry.at in (None, timedelta(hours=-1)))
            for asked, task in zip(change, done[len(new) :], strict=True):
                before = self.model.tasks[task.task_id]
                late = asked.at in (NEVER, timedelta(hours=9))
                moved = asked.queue not in (None, before.queue)
                assert task == replace(
                    before,
                    queue=asked.queue or before.queue,
                    sequence=asked.sequence if moved else before.sequence,
                    version=before.version + 1,
                    claimant=claimant if asked.claimed and late else None,
                    attempt=before.attempt if asked.attempt is None else asked.attempt,
                    value=asked.value,
                    at=task.at,
                    modified=task.modified,
                )
                assert self.model.free(task) == (not late)

        @invariant()
        def lists_and_statistics_agree(self) -> None:
            assert queue.queue_stats() == self.model.stats()
            for name in QUEUES:
                assert queue.tasks(name) == tuple(self.model.of(name))

    return Machine


def test_any_sequence_of_calls_gives_what_a_dictionary_would(open_client: Open, request: pytest.FixtureRequest) -> None:
    is_in_process = request.node.callspec.params["open_client"] in ("memory", "logged")
    run_state_machine_as_test(
        machine_of(open_client),
        settings=settings(
            # A call of a server's costs ten times as much.
            max_examples=30 if is_in_process else 12,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )

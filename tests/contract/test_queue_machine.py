"""Any sequence of calls gives what a dictionary in memory would give."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

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

LEASE = timedelta(hours=9)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)
NAMESPACE = UUID(int=1)
QUEUES = ("spread a", "spread b", "strict a", "strict b")
CLAIMANTS = st.sampled_from(["ann", "bob"])
NUMBERS = st.integers(0, 11)
ARRIVALS = st.sampled_from([None, NEVER, timedelta(hours=-1)])


class Model:
    """The tasks by id, as the backend last returned them: nothing here arrives by the passage of time."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, Task] = {}

    def of(self, queue: str) -> list[Task]:
        tasks = [task for task in self.tasks.values() if task.queue == queue]
        return sorted(tasks, key=lambda task: (task.sequence or 0, task.at, task.task_id))

    def free(self, task: Task) -> bool:
        return task.at < datetime.now(UTC) + timedelta(hours=4)

    def claimable(self, queue: str) -> Task | None:
        tasks = self.of(queue)
        candidates = tasks[:1] if queue.startswith("strict") else tasks
        return next((task for task in candidates if self.free(task)), None)

    def failure(self, ref: TaskRef, claimant: str | None) -> FailureReason | None:
        task = self.tasks.get(ref.task_id)
        if task is None:
            return FailureReason.MISSING
        if task.version != ref.version:
            return FailureReason.WRONG_VERSION
        if claimant is not None and not self.free(task) and task.claimant not in (None, claimant):
            return FailureReason.CLAIMED
        return None

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

        @rule(name=st.sampled_from(QUEUES), claimant=CLAIMANTS)
        def try_claim(self, name: str, claimant: str) -> None:
            expected = self.model.claimable(name)
            task = queue.try_claim([name], claimant=claimant, lease=LEASE)
            assert (task and task.task_id) == (expected and expected.task_id)
            if task is not None and expected is not None:
                assert (task.version, task.claims) == (expected.version + 1, expected.claims + 1)
                assert (task.claimant, task.value) == (claimant, expected.value)
                self.model.tasks[task.task_id] = task

        @rule(number=NUMBERS, claimant=CLAIMANTS)
        def renew(self, number: int, claimant: str) -> None:
            task = self.model.tasks.get(self.id_of(number))
            if task is None:
                return
            if task.claimant == claimant:
                self.model.tasks[task.task_id] = queue.renew(task, claimant=claimant, lease=LEASE)
            else:
                with pytest.raises(DependencyError):
                    queue.renew(task, claimant=claimant, lease=LEASE)

        @rule(
            claimant=CLAIMANTS,
            entries=st.lists(
                st.tuples(
                    NUMBERS,
                    st.sampled_from(["insert", "skip", "change", "delay", "move", "delete", "depend"]),
                    st.sampled_from(QUEUES),
                    ARRIVALS,
                    st.integers(0, 9).map(lambda tenth: tenth == 0),
                ),
                min_size=1,
                max_size=5,
                unique_by=lambda entry: entry[0],
            ),
        )
        def modify(self, claimant: str, entries: list[tuple[int, str, str, datetime | None, bool]]) -> None:
            insert, change, delete, depend = [], [], [], []
            expected: set[tuple[TaskId, FailureReason]] = set()
            for number, what, name, at, stale in entries:
                # A task's number is its sequence: a strict place is only ever wanted by one id.
                sequence = number if name.startswith("strict") else None
                ref = self.ref_of(number, stale=stale)
                reason = self.model.failure(ref, None if what == "depend" else claimant)
                if what in ("insert", "skip"):
                    insert.append(
                        Insert(
                            queue=name,
                            value=[number],
                            sequence=sequence,
                            at=at,
                            task_id=ref.task_id,
                            skip_colliding=what == "skip",
                        )
                    )
                    collides = what == "insert" and ref.task_id in self.model.tasks
                    reason = FailureReason.COLLIDING if collides else None
                elif what in ("change", "delay"):
                    change.append(Change(ref=ref, value=what, at=at, claimed=what == "change"))
                elif what == "move":
                    known = self.model.tasks.get(ref.task_id)
                    if known is not None and known.queue == name:
                        sequence = known.sequence
                    change.append(Change(ref=ref, value=what, at=at, queue=name, sequence=sequence))
                else:
                    (delete if what == "delete" else depend).append(ref)
                if reason is not None:
                    expected.add((ref.task_id, reason))
            try:
                done = queue.modify(claimant=claimant, insert=insert, change=change, delete=delete, depend=depend)
            except DependencyError as error:
                failures: tuple[Failure, ...] = (*error.inserts, *error.changes, *error.deletes, *error.depends)
                assert {(failure.task_id, failure.reason) for failure in failures} == expected
                return
            assert expected == set()
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
                assert (task.queue, task.sequence, task.version, task.value) == (
                    entry.queue,
                    entry.sequence,
                    0,
                    entry.value,
                )
            for asked, task in zip(change, done[len(new) :], strict=True):
                before = self.model.tasks[task.task_id]
                holder = claimant if asked.claimed and asked.at == NEVER else None
                assert (task.queue, task.claimant, task.version, task.claims, task.created) == (
                    asked.queue or before.queue,
                    holder,
                    before.version + 1,
                    before.claims,
                    before.created,
                )

        @invariant()
        def lists_and_statistics_agree(self) -> None:
            assert queue.queue_stats() == self.model.stats()
            for name in QUEUES:
                assert queue.tasks(name) == tuple(self.model.of(name))

    return Machine


def test_any_sequence_of_calls_gives_what_a_dictionary_would(open_client: Open) -> None:
    run_state_machine_as_test(
        machine_of(open_client),
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )

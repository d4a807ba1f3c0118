"""Turns planned epochs into tasks, opens and closes serialization points, stops: each step one atomic modify.

Any lane, `open` or a stop may call any of it at any moment. Of several callers that change the same state one wins;
the others are told by `DependencyError`, read again and find it done. A crash between two calls leaves a state that
the next caller carries on from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from airflow_parallel_apply.pipeline.coordinate.feeding import Feeder, FeedLimits
from airflow_parallel_apply.pipeline.coordinate.groups import Groups
from airflow_parallel_apply.pipeline.coordinate.merge_points import MergePoints
from airflow_parallel_apply.pipeline.coordinate.recovery import Recovery, Replan
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, UnitFailure
from airflow_parallel_apply.pipeline.coordinate.state_task import MAX_RACES, StateTask, contended, refuses_others
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind, Names, SerialWork, is_ordered
from airflow_parallel_apply.pipeline.errors import OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.queue.model import Change, DependencyError, Insert, Task, TaskRef
from airflow_parallel_apply.queue.protocol import Queue


class Coordinator:
    """One generation of one pipeline. Not thread-safe where `session` is not; the queue is."""

    def __init__(
        self,
        queue: Queue,
        session: PipelineSession,
        names: Names,
        *,
        claimant: str,
        limits: FeedLimits | None = None,
        revive: Callable[[Coordinator], None] | None = None,
        replan: Replan | None = None,
    ) -> None:
        """`revive`: called when the queue has no tasks of the generation; seeds them anew, or raises. `replan`: called
        when the target has lost commits, which the plan's end may be among.
        """
        self.queue = queue
        self.names = names
        self._session = session
        self._claimant = claimant
        limits = limits or FeedLimits()
        self._feeder = Feeder(session, names, limits)
        self._state_task = StateTask(
            queue, names, claimant=claimant, revive=None if revive is None else lambda: revive(self)
        )
        self.merge_points = MergePoints(
            queue, session, names, self._state_task, claimant=claimant, limit_bytes=limits.bytes_
        )
        self.groups = Groups(queue, session, names, self._state_task, claimant=claimant)
        self._recovery = Recovery(queue, session, names, self._state_task, claimant=claimant, replan=replan)

    def seed(self, state: CoordinatorState, *, capture: bool) -> None:
        """Make the generation's tasks; `capture` where the source's backlog is not in the log yet."""
        insert = [
            Insert(
                queue=self.names.coordinator,
                value=state.to_json(),
                at=PARKED,
                task_id=self.names.coordinator_id,
                skip_colliding=True,
            )
        ]
        if capture:
            insert.append(
                Insert(
                    queue=self.names.capture,
                    value={},
                    sequence=0,
                    task_id=self.names.task_id("capture"),
                    skip_colliding=True,
                )
            )
        self.queue.modify(claimant=self._claimant, insert=insert)

    def state(self) -> CoordinatorState:
        """As it is now. `OwnershipLost` when the generation's tasks are gone for good."""
        return self._state_task.read()[1]

    def feed(self) -> CoordinatorState:
        """Put planned epochs into the channels' queues, up to the limits, and stop markers behind the last one."""
        return self._state_task.update(self._feeder.fed)

    def settle(self, until_seqno: int) -> CoordinatorState:
        """The run's bound is in the log: `until_seqno` is its last seqno."""
        return self._state_task.update(lambda state: (replace(state, until_seqno=until_seqno), []))

    def request_stop(self) -> CoordinatorState:
        """Put a stop marker behind what is fed, in every channel at the same seqno; no-op when one is there."""

        def stop(state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
            return (state, []) if state.phase is not Phase.RUNNING else self._feeder.stopped(state)

        return self._state_task.update(stop)

    def acknowledge(self, marker: Task, channel: int) -> CoordinatorState:
        """A channel stands at its stop marker. `OwnershipLost` where all have acknowledged, and not all are there: the
        target has lost commits, before the stop was put or since.
        """
        seqno = ChannelWork.of_task(marker).last_seqno

        def step(state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
            after = state.acknowledge(channel)
            if after.phase is Phase.DRAINED and any(at.seqno != seqno for at in self._session.target.positions()):
                raise OwnershipLost(f"the target has lost commits: not all channels are at seqno {seqno}")
            return after, []

        return self._state_task.update(step, delete=[marker.ref])

    def recover(self) -> bool:
        """Start over from positions and plan where the queue's tasks do not fit them: the target has lost commits that
        the queue remembers as finished. Says whether it did. The caller holds none of the tasks.
        """
        if not self._recovery.recover():
            return False
        self.feed()
        return True

    def fail(self, task: Task, failure: UnitFailure) -> CoordinatorState:
        """Mark the task's channel failed: the task stays the head, parked, and holds up what is behind it."""
        parked = Change(
            ref=task.ref, value=task.value, at=PARKED, claimed=False, attempt=task.attempt + 1, err=failure.message
        )
        return self._state_task.update(lambda state: (state.fail(failure), []), change=[parked])

    def park(self, task: Task) -> None:
        """Put back a head that starts above the failure: nobody may take it in this generation."""
        self.queue.modify(
            claimant=self._claimant,
            change=[Change(ref=task.ref, value=task.value, at=PARKED, claimed=False)],
        )

    def give_back(self, task: Task) -> None:
        """Free a claimed task: the lane that holds it ends."""
        self.queue.modify(claimant=self._claimant, change=[Change(ref=task.ref, value=task.value)])

    def finish(self, done: Sequence[TaskRef], *, then: Sequence[Task], lease: timedelta) -> Task | None:
        """Delete a unit's tasks and, in the same modify, hold the first task of the channel's next unit. None where
        there is none, or where it may not be begun: behind a failure that was recorded up to this moment (law 4), or
        while the channels merge.
        """
        for _ in range(MAX_RACES):
            if not then:
                self.queue.modify(claimant=self._claimant, delete=done)
                return None
            kept, state = self._state_task.read()
            if state.holds_up(ChannelWork.of_task(task).first_seqno for task in then):
                then = ()
                continue
            head = Change(ref=then[0].ref, value=then[0].value, at=lease)
            try:
                (held,) = self.queue.modify(claimant=self._claimant, delete=done, change=[head], depend=[kept.ref])
            except DependencyError as error:
                if refuses_others(error, kept):
                    raise
                continue
            return held
        raise contended()

    def arrive(self, marker: Task) -> None:
        """A channel is drained up to its barrier; the last one to arrive opens the serialization point."""
        work = ChannelWork.of_task(marker)
        if self.state().in_groups:
            self.groups.arrive(marker)
            return
        for _ in range(MAX_RACES):
            found = self.queue.tasks(self.names.barrier, ids=[self.names.barrier_id(work.epoch)])
            if not found:
                return
            barrier = found[0]
            arrived = sorted({*barrier.value["arrived"], work.channel})
            insert = []
            if len(arrived) == barrier.value["channels"]:
                serial = SerialWork(**barrier.value["serial"])
                insert.append(
                    Insert(
                        queue=self.names.serial,
                        value=serial.to_json(),
                        sequence=work.epoch,
                        task_id=self.names.task_id("serial", work.epoch),
                        skip_colliding=True,
                    )
                )
            try:
                self.queue.modify(
                    claimant=self._claimant,
                    insert=insert,
                    change=[
                        Change(ref=marker.ref, value=marker.value, at=PARKED, claimed=False),
                        Change(ref=barrier.ref, value={**barrier.value, "arrived": arrived}, at=PARKED, claimed=False),
                    ],
                )
            except DependencyError as error:
                if any(failure.task_id == marker.task_id for failure in error.changes):
                    raise
                continue
            return
        raise Unavailable("the barrier changes faster than this lane can follow", op="arrive")

    def finish_serial(self, task: Task) -> None:
        """Close a serialization point: the barrier and its markers go, and the channels go on."""
        if is_ordered(task):
            self.groups.finish(task)
            return
        work = SerialWork.of_task(task)
        barrier = self.queue.tasks(self.names.barrier, ids=[self.names.barrier_id(work.epoch)])
        markers = [
            head
            for channel in range(barrier[0].value["channels"] if barrier else 0)
            for head in self.queue.tasks(self.names.channel(channel), limit=1)
            if head.value["kind"] == Kind.BARRIER and head.value["epoch"] == work.epoch
        ]
        done = [task.ref, *(found.ref for found in barrier), *(marker.ref for marker in markers)]
        self.queue.modify(claimant=self._claimant, delete=done)

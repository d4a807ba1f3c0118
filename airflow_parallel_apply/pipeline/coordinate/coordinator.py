"""Turns planned epochs into tasks, opens and closes serialization points, stops: each step one atomic modify.

Any lane, `open` or a stop may call any of it at any moment. Of several callers that move the same state one wins;
the others are told by `DependencyError`, read again and find it done. A crash between two calls leaves a state that
the next caller carries on from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from airflow_parallel_apply.pipeline.coordinate.cell import MAX_RACES, StateCell
from airflow_parallel_apply.pipeline.coordinate.merge_points import MergePoints
from airflow_parallel_apply.pipeline.coordinate.state import (
    CoordinatorState,
    Phase,
    StopReason,
    UnitFailure,
)
from airflow_parallel_apply.pipeline.coordinate.tasks import (
    PARKED,
    STOP_SEQUENCE,
    ChannelWork,
    Kind,
    Names,
    SerialWork,
)
from airflow_parallel_apply.pipeline.epoch import Epoch, EpochKind
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.position import Position, low_watermark
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import Change, DependencyError, Insert, Task, TaskRef
from airflow_parallel_apply.queue.protocol import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """How far the channels' queues run ahead of the slowest channel; bounds what a stop has to finish."""

    epochs: int = 32
    bytes_: int = 2**30


class Coordinator:
    """One generation of one pipeline. Not thread-safe where `target` is not; the queue is."""

    def __init__(
        self,
        queue: Queue,
        target: Target,
        names: Names,
        *,
        claimant: str,
        limits: FeedLimits | None = None,
        revive: Callable[[Coordinator], None] | None = None,
    ) -> None:
        """`revive`: called when the queue has no tasks of the generation; seeds them anew, or raises."""
        self.queue = queue
        self.names = names
        self._target = target
        self._claimant = claimant
        self._limits = limits or FeedLimits()
        self._cell = StateCell(queue, names, claimant=claimant, revive=None if revive is None else lambda: revive(self))
        self.merge_points = MergePoints(
            queue, target, names, self._cell, claimant=claimant, limit_bytes=self._limits.bytes_
        )

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
        return self._cell.read()[1]

    def feed(self) -> CoordinatorState:
        """Put planned epochs into the channels' queues, up to the limits, and stop markers behind the last one."""
        return self._cell.move(self._fed)

    def settle(self, until_seqno: int) -> CoordinatorState:
        """The run's bound is in the log: `until_seqno` is its last seqno."""
        return self._cell.move(lambda state: (replace(state, until_seqno=until_seqno), []))

    def request_stop(self) -> CoordinatorState:
        """Put a stop marker behind what is fed, in every channel at the same seqno; no-op when one is there."""

        def stop(state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
            if state.phase is not Phase.RUNNING:
                return state, []
            stopping = state.stopping(StopReason.ASKED)
            return stopping, self._stop_markers(stopping)

        return self._cell.move(stop)

    def acknowledge(self, marker: Task, channel: int) -> CoordinatorState:
        """A channel reached its stop marker."""
        return self._cell.move(lambda state: (state.acknowledge(channel), []), delete=[marker.ref])

    def fail(self, task: Task, failure: UnitFailure) -> CoordinatorState:
        """Mark the task's channel failed: the task stays the head, parked, and holds up what is behind it."""
        parked = Change(
            ref=task.ref, value=task.value, at=PARKED, claimed=False, attempt=task.attempt + 1, err=failure.message
        )
        return self._cell.move(lambda state: (state.fail(failure), []), change=[parked])

    def park(self, task: Task) -> None:
        """Put back a head that starts above the failure: nobody may take it in this generation."""
        self.queue.modify(
            claimant=self._claimant,
            change=[Change(ref=task.ref, value=task.value, at=PARKED, claimed=False)],
        )

    def give_back(self, task: Task) -> None:
        """Free a claimed task: the lane that holds it ends."""
        self.queue.modify(claimant=self._claimant, change=[Change(ref=task.ref, value=task.value)])

    def finish(self, done: Sequence[TaskRef], *, then_claim: Task | None, lease: timedelta) -> Task | None:
        """Delete a unit's tasks and, in the same modify, hold the channel's next head where the lane goes on."""
        change = []
        if then_claim is not None:
            change.append(Change(ref=then_claim.ref, value=then_claim.value, at=lease))
        changed = self.queue.modify(claimant=self._claimant, delete=done, change=change)
        return changed[0] if changed else None

    def arrive(self, fence: Task) -> None:
        """A channel is drained up to its fence; the last one to arrive opens the serialization point."""
        work = ChannelWork.of_task(fence)
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
                    )
                )
            try:
                self.queue.modify(
                    claimant=self._claimant,
                    insert=insert,
                    change=[
                        Change(ref=fence.ref, value=fence.value, at=PARKED, claimed=False),
                        Change(ref=barrier.ref, value={**barrier.value, "arrived": arrived}, at=PARKED, claimed=False),
                    ],
                )
            except DependencyError as error:
                if any(failure.task_id == fence.task_id for failure in error.changes):
                    raise
                continue
            return
        raise Unavailable("the fence's barrier moves faster than this lane can follow", op="arrive")

    def finish_serial(self, task: Task) -> None:
        """Close a serialization point: its fences and barrier go, and the channels go on."""
        work = SerialWork.of_task(task)
        barrier = self.queue.tasks(self.names.barrier, ids=[self.names.barrier_id(work.epoch)])
        fences = [
            head
            for channel in range(barrier[0].value["channels"] if barrier else 0)
            for head in self.queue.tasks(self.names.channel(channel), limit=1)
            if head.value["kind"] == Kind.FENCE and head.value["epoch"] == work.epoch
        ]
        done = [task.ref, *(found.ref for found in barrier), *(fence.ref for fence in fences)]
        self.queue.modify(claimant=self._claimant, delete=done)

    def _fed(self, state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
        if state.phase is not Phase.RUNNING or state.merging is not None:
            return state, []
        positions = self._target.positions()
        epochs, complete = self._next_epochs(state, positions)
        inserts: list[Insert] = []
        for epoch in epochs:
            inserts += self._epoch_tasks(epoch, positions)
            state = state.fed(epoch=epoch.number, seqno=epoch.last_seqno)
        if complete:
            state = state.stopping(StopReason.END)
            inserts += self._stop_markers(state)
        return state, inserts

    def _next_epochs(self, state: CoordinatorState, positions: Sequence[Position]) -> tuple[list[Epoch], bool]:
        """The epochs to feed now, and whether nothing of the run is left to feed after them."""
        low, high = low_watermark(positions), max(position.seqno for position in positions)
        waiting = self._target.epochs(above_seqno=low, limit=self._limits.epochs + 1)
        ahead = [epoch for epoch in waiting if epoch.number <= state.fed_epoch]
        count, size = len(ahead), sum(sum(epoch.bytes_) for epoch in ahead)
        chosen: list[Epoch] = []
        candidates = self._target.epochs(after_number=state.fed_epoch, above_seqno=low, limit=self._limits.epochs + 1)
        # A later run that failed may have left channels beyond this run's bound: they meet where the furthest is.
        until = None if state.until_seqno is None else max(state.until_seqno, high)
        for epoch in candidates:
            if until is not None and epoch.first_seqno > until:
                return chosen, True
            full = count >= self._limits.epochs or size >= self._limits.bytes_
            # Channels that an earlier crash left ahead are caught up with first, whatever the limits.
            if full and epoch.first_seqno > high:
                return chosen, False
            chosen.append(epoch)
            count, size = count + 1, size + sum(epoch.bytes_)
        if len(candidates) > self._limits.epochs:
            return chosen, False
        fed_seqno = chosen[-1].last_seqno if chosen else state.fed_seqno
        return chosen, until is not None and fed_seqno >= until

    def _epoch_tasks(self, epoch: Epoch, positions: Sequence[Position]) -> list[Insert]:
        behind = [position.channel for position in positions if position.seqno < epoch.last_seqno]
        kind = Kind.BRANCH if epoch.kind is EpochKind.PARALLEL else Kind.FENCE
        tasks = [
            Insert(
                queue=self.names.channel(channel),
                value=ChannelWork.of_epoch(epoch, channel, kind).to_json(),
                sequence=epoch.number,
                task_id=self.names.task_id("channel", channel, epoch.number),
            )
            for channel in behind
        ]
        if kind is Kind.FENCE and behind:
            serial = SerialWork(
                epoch=epoch.number,
                first_seqno=epoch.first_seqno,
                last_seqno=epoch.last_seqno,
                rows=epoch.row_count,
                reason=epoch.reason,
            )
            tasks.append(
                Insert(
                    queue=self.names.barrier,
                    value={"arrived": [], "channels": len(behind), "serial": serial.to_json()},
                    at=PARKED,
                    task_id=self.names.barrier_id(epoch.number),
                )
            )
        return tasks

    def _stop_markers(self, state: CoordinatorState) -> list[Insert]:
        seqno = state.fed_seqno
        return [
            Insert(
                queue=self.names.channel(channel),
                value=ChannelWork(
                    kind=Kind.STOP,
                    channel=channel,
                    epoch=state.fed_epoch,
                    first_seqno=seqno,
                    last_seqno=seqno,
                    rows=0,
                    bytes_=0,
                ).to_json(),
                sequence=STOP_SEQUENCE,
                task_id=self.names.task_id("stop", channel),
            )
            for channel in range(state.channels)
        ]

"""Merge points: how a conflict between channels drains them, and how they go on.

::

    a channel meets a conflict ── open ──▶ state: merging; its head parked, nothing is fed, no branch is begun
    a lane claims another head ── join ──▶ that head parked                            (a unit under way ends first)
    every head is parked, or its queue empty ── gather ──▶ the merge task, in the queue `serial`
    a lane has merged ── close ──▶ the task is gone, heads are free, state: not merging

Each arrow is one modify, which depends on the version of the state, so that none mixes with another; `gather` may be
tried by anybody at any moment. A head that is a barrier is left alone: its channel is drained, and stays so, since the
channel that met the conflict cannot reach that barrier.
"""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, MergePoint
from airflow_parallel_apply.pipeline.coordinate.state_task import (
    MAX_RACES,
    StateTask,
    contended,
    refuses_others,
    updated,
)
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, Kind, Names, merge_task
from airflow_parallel_apply.pipeline.errors import Conflict, OwnershipLost
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind
from airflow_parallel_apply.queue.model import Change, DependencyError, Insert, Task
from airflow_parallel_apply.queue.protocol import Queue

_DENSE_EPOCHS: Final = 4
"""A conflict at most so many epochs behind the merge point before it makes the next one twice as long."""


class MergePoints:
    """Those of one generation. Not thread-safe where `session` is not."""

    def __init__(
        self,
        queue: Queue,
        session: PipelineSession,
        names: Names,
        state_task: StateTask,
        *,
        claimant: str,
        limit_bytes: int,
    ) -> None:
        self._queue = queue
        self._session = session
        self._names = names
        self._state_task = state_task
        self._claimant = claimant
        self._limit_bytes = limit_bytes

    def open(self, head: Task, channel: int, after_seqno: int, conflict: Conflict) -> None:
        """Park a channel's head, which met a conflict behind `after_seqno`, for the merge point that this opens, or for
        the one that is open already. Errors: `OwnershipLost` where nothing is planned there any more.
        """

        def step(state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
            if state.merging is not None:
                return state, []
            found = self._session.ledger.epochs(above_seqno=after_seqno, limit=1)
            if not found:
                raise OwnershipLost(
                    f"nothing is planned behind seqno {after_seqno}: the target or its ledger has lost commits"
                )
            first = found[0]
            is_dense = state.merged_count > 0 and first.number - state.merged_epoch <= _DENSE_EPOCHS
            streak = state.merge_streak + 1 if is_dense else 0
            point = MergePoint(
                number=state.merged_count,
                channel=channel,
                reason=conflict.reason,
                table=conflict.table,
                until_seqno=self._until(first, state.fed_epoch, 2**streak),
            )
            return state.merge(point, is_dense=is_dense), []

        self._state_task.update(step, change=[_parked(head)])

    def join(self, head: Task) -> None:
        """Park a channel's head until the merge point is closed; give it back where it is closed already."""
        for _ in range(MAX_RACES):
            task, state = self._state_task.read()
            if state.merging is None:
                self._queue.modify(claimant=self._claimant, change=[_freed(head)])
                return
            try:
                self._queue.modify(claimant=self._claimant, change=[_parked(head)], depend=[task.ref])
            except DependencyError as error:
                if refuses_others(error, task):
                    raise
                continue
            return
        raise contended()

    def gather(self) -> None:
        """Hand the merge point out if no channel is under way any more; else nothing: whoever is under way will try."""
        task, state = self._state_task.read()
        if state.merging is None or self._is_pointless(state, state.merging):
            return
        if self._queue.tasks(self._names.serial, limit=1):
            return
        heads = self._heads(state)
        waiting = [head.ref for head in heads if head.at >= PARKED]
        free = [_parked(head) for head in heads if head.at < PARKED]
        try:
            self._queue.modify(
                claimant=self._claimant,
                insert=[merge_task(self._names, state.merging.number)],
                # Refused while another lane holds one of them.
                change=free,
                depend=[task.ref, *waiting],
            )
        except DependencyError:
            return

    def close(self, task: Task, seqno: int) -> None:
        """All channels have committed `seqno`: they go on. `task` is the merge task, held by the caller.

        Errors: `OwnershipLost` or `DependencyError` when another lane has closed it.
        """
        for _ in range(MAX_RACES):
            kept, state = self._state_task.read()
            if state.merging is None:
                raise OwnershipLost("another lane has closed the merge point", op="merge")
            heads = self._heads(state)
            # What else is parked waits for a person.
            freed = [head for head in heads if _waits_for_merge(head)]
            others = [head.ref for head in heads if not _waits_for_merge(head)]
            after = state.merged(self._session.ledger.last_epoch_at(seqno))
            try:
                self._queue.modify(
                    claimant=self._claimant,
                    delete=[task.ref],
                    change=[updated(kept, after), *(_freed(head) for head in freed)],
                    depend=others,
                )
            except DependencyError as error:
                if any(failure.task_id == task.task_id for failure in error.deletes):
                    raise
                continue
            return
        raise contended()

    def _until(self, first: Epoch, fed_epoch: int, count: int) -> int:
        """The last seqno of as many epochs, with `first`: fed ones, before the next barrier."""
        until, size = first.last_seqno, sum(first.bytes_)
        for epoch in self._session.ledger.epochs(after_number=first.number, limit=count - 1):
            size += sum(epoch.bytes_)
            if epoch.kind is EpochKind.SERIAL or epoch.number > fed_epoch or size > self._limit_bytes:
                break
            until = epoch.last_seqno
        return until

    def _is_pointless(self, state: CoordinatorState, point: MergePoint) -> bool:
        """True if a unit failed that the merge would have to apply, too: then a person has to see the failure."""
        if state.failure is None:
            return False
        highest = max(position.seqno for position in self._session.target.positions())
        return state.failure.seqno <= max(highest, point.until_seqno)

    def _heads(self, state: CoordinatorState) -> list[Task]:
        """The task that each channel would do next, barriers left aside."""
        queues = [self._names.channel(channel) for channel in range(state.channels)]
        heads = [head for queue in queues for head in self._queue.tasks(queue, limit=1)]
        return [head for head in heads if head.value["kind"] != Kind.BARRIER]


def _waits_for_merge(head: Task) -> bool:
    return head.at >= PARKED and not head.err


def _parked(task: Task) -> Change:
    return Change(ref=task.ref, value=task.value, at=PARKED, claimed=False)


def _freed(task: Task) -> Change:
    return Change(ref=task.ref, value=task.value)

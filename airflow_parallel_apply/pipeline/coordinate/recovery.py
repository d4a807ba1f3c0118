"""Feeding anew what a target has lost: the queue remembers tasks as finished whose commits are gone.

A target that is restored, or promoted from a standby that lags, forgets the end of what it committed: rows, positions
and plan together. A queue elsewhere does not. So the tasks of a channel may begin above its position + 1, or name
epochs that are planned no more. Positions and plan decide (law 8): whatever of the generation's tasks is free is
deleted, and the state goes back to what the positions say; feeding then begins at the low watermark. A plan that lacks
its end is planned again, whether that was fed or not.

What another lane holds meanwhile stays. Where its channel lost something its holder cannot commit (the position is not
where it was) and comes here itself, or the lane after it does. Where it lost nothing the unit is committed, perhaps
beyond a stop that was put anew meanwhile: the channels then meet where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.coordinate.groups import misfit_of_groups
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.coordinate.state_task import MAX_RACES, StateTask, contended, updated
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork, Kind, Names, SerialWork, is_merge
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.epoch import Epoch
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.queue.model import DependencyError, FailureReason, Task
from airflow_parallel_apply.queue.protocol import Queue

_logger = logging.getLogger(__name__)

_PAGE: Final = 500

Replan = Callable[[int | None], None]
"""Extends the plan again up to where it was; the argument is the run's last seqno, where that is known."""


class Recovery:
    """Recovers one generation. Not thread-safe where `session` is not."""

    def __init__(
        self,
        queue: Queue,
        session: PipelineSession,
        names: Names,
        state_task: StateTask,
        *,
        claimant: str,
        replan: Replan | None,
    ) -> None:
        self._queue = queue
        self._session = session
        self._names = names
        self._state_task = state_task
        self._claimant = claimant
        self._replan = replan

    def recover(self) -> bool:
        """Compare the tasks with positions and plan, and start over from these where they do not fit; whether it did.

        The caller holds no task of a channel, nor of the serial queue.
        """
        held: set[object] = set()
        for _ in range(MAX_RACES):
            kept, state = self._state_task.read()
            if state.phase is Phase.DRAINED:
                return False
            tasks = self._tasks(state)
            # After the tasks: a task goes only once its position is moved, so what misses here is lost.
            positions = self._session.target.positions()
            reason = self._misfit(state, tasks, positions)
            if reason is None:
                return self._plan_to_end(state) or self._drop_stale(kept, state, tasks)
            if self._replan is not None:
                self._replan(state.until_seqno)
            low = low_watermark(positions)
            after = state.restarted(epoch=self._session.ledger.last_epoch_at(low), seqno=low)
            free = [task.ref for queue in tasks.values() for task in queue if task.task_id not in held]
            try:
                self._queue.modify(claimant=self._claimant, change=[updated(kept, after)], delete=free)
            except DependencyError as error:
                held |= {failure.task_id for failure in error.deletes if failure.reason is FailureReason.CLAIMED}
                continue
            _logger.warning("the target has lost commits, beginning again at its seqno %d: %s", low, reason)
            return True
        raise contended()

    def _tasks(self, state: CoordinatorState) -> dict[str, list[Task]]:
        """By queue: the channels', in their order, then `serial` and `barrier`."""
        channels = [self._names.channel(channel) for channel in range(state.channels)]
        return {queue: self._all(queue) for queue in (*channels, self._names.serial, self._names.barrier)}

    def _all(self, queue: str) -> list[Task]:
        found: list[Task] = []
        while page := self._queue.tasks(queue, limit=_PAGE, after=found[-1] if found else None):
            found += page
        return found

    def _misfit(
        self, state: CoordinatorState, tasks: Mapping[str, Sequence[Task]], positions: Sequence[Position]
    ) -> str | None:
        """Say in words what does not fit; None if everything does."""
        low = low_watermark(positions)
        planned = {epoch.number: epoch for epoch in self._session.ledger.epochs(above_seqno=low)}
        if state.in_groups:
            channels = {channel: tasks[self._names.channel(channel)] for channel in range(state.channels)}
            return misfit_of_groups(state, tasks[self._names.serial], channels, positions, planned)
        for position in positions:
            waiting = tasks.get(self._names.channel(position.channel), ())
            found = _channel_misfit(state, position, [ChannelWork.of_task(task) for task in waiting], planned)
            if found is not None:
                return f"channel {position.channel} is at seqno {position.seqno}, {found}"
        return None

    def _plan_to_end(self, state: CoordinatorState) -> bool:
        """Plan again what is lost of the plan, though it was not fed yet. Says whether it did. While the capture's task
        is there, whoever has it plans.
        """
        until = state.until_seqno
        is_lacking = state.phase is Phase.RUNNING and until is not None and self._session.planned_seqno() < until
        if self._replan is None or not is_lacking or self._queue.tasks(self._names.capture, limit=1):
            return False
        _logger.warning("the plan does not go on to the run's end, seqno %d: planning again", until)
        self._replan(until)
        return True

    def _drop_stale(self, kept: Task, state: CoordinatorState, tasks: Mapping[str, Sequence[Task]]) -> bool:
        """Delete what was in the queue `serial`, held by a lane, when another one started over: whoever claims it takes
        all channels from their owners, for nothing. Of groups that is told by `_misfit`.
        """
        if state.in_groups:
            return False
        arrived = {
            barrier.value["serial"]["epoch"]
            for barrier in tasks[self._names.barrier]
            if len(barrier.value["arrived"]) == barrier.value["channels"]
        }
        stale = [task.ref for task in tasks[self._names.serial] if not _is_open(state, task, arrived)]
        if not stale:
            return False
        try:
            self._queue.modify(claimant=self._claimant, delete=stale, depend=[kept.ref])
        except DependencyError:
            # Its holder meets the same, or the state was changed and says something else now.
            return False
        return True


def _is_open(state: CoordinatorState, task: Task, arrived: Container[int]) -> bool:
    """True if a task of the queue `serial` belongs to the state's merge point, or if all channels have reached its
    barriers.
    """
    if is_merge(task):
        return state.merging is not None and state.merging.number == task.value["number"]
    return SerialWork.of_task(task).epoch in arrived


def _channel_misfit(
    state: CoordinatorState, position: Position, works: Sequence[ChannelWork], planned: Mapping[int, Epoch]
) -> str | None:
    reached = position.seqno
    if state.stop_seqno is not None and reached > state.stop_seqno:
        return f"and its stop at {state.stop_seqno}"
    for work in works:
        if work.kind is Kind.STOP:
            if state.stop_seqno != work.last_seqno:
                return "and its stop marker belongs to a stop that no longer exists"
        elif work.last_seqno <= reached:
            continue
        elif work.first_seqno > reached + 1:
            return f"and its tasks go on at {work.first_seqno}"
        elif not _is_planned(planned, work.epoch, work.first_seqno, work.last_seqno):
            return f"and its epoch {work.epoch} is no longer planned"
        else:
            reached = work.last_seqno
    if reached < state.fed_seqno:
        return f"and its tasks end at {reached}, though {state.fed_seqno} was fed"
    return None


def _is_planned(planned: Mapping[int, Epoch], number: int, first_seqno: int, last_seqno: int) -> bool:
    epoch = planned.get(number)
    return epoch is not None and (epoch.first_seqno, epoch.last_seqno) == (first_seqno, last_seqno)

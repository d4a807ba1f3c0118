"""Feeding: planned epochs become tasks of the channels, with the stop markers behind them. Reads only; the coordinator
writes the tasks, if nobody has changed the state meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_parallel_apply.pipeline.coordinate.grouping import GroupLimits, stop_task, with_groups
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, StopReason
from airflow_parallel_apply.pipeline.coordinate.tasks import (
    PARKED,
    STOP_SEQUENCE,
    ChannelWork,
    Kind,
    Names,
    SerialWork,
)
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.queue.model import Insert


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """Limits on how far the channels' queues run ahead of the slowest channel; they bound what a stop has to finish."""

    epochs: int = 32
    bytes_: int = 2**30
    groups: GroupLimits = field(default_factory=GroupLimits)
    """Under epoch consistency."""


class Feeder:
    """Feeds one generation. Not thread-safe where `session` is not."""

    def __init__(self, session: PipelineSession, names: Names, limits: FeedLimits) -> None:
        self._ledger = session.ledger
        self._target = session.target
        self._names = names
        self._limits = limits

    def fed(self, state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
        """Planned epochs up to the limits, and stop markers behind the last one of the run."""
        if state.phase is not Phase.RUNNING or state.merging is not None:
            return state, []
        if state.stop_reason is StopReason.ASKED:
            # Before the target lost commits.
            return self.stopped(state)
        positions = self._target.positions()
        state = self._behind_committed(state, positions)
        if state.in_groups and state.fed_seqno < max(position.seqno for position in positions):
            # They meet first, as one group.
            return self._with_tasks(state, self._epochs_to_meet(state, positions), positions)
        epochs, complete = self._next_epochs(state, positions)
        state, inserts = self._with_tasks(state, epochs, positions)
        if complete and (not epochs or state.fed_epoch == epochs[-1].number):
            state = state.stopping(StopReason.END)
            inserts += self._stop_markers(state)
        return state, inserts

    def stopped(self, state: CoordinatorState) -> tuple[CoordinatorState, list[Insert]]:
        """With stop markers behind what is fed, but not below a channel that is ahead of it: the others catch up."""
        positions = self._target.positions()
        high = max(position.seqno for position in positions)
        state, inserts = self._with_tasks(state, self._epochs_to_meet(state, positions), positions)
        if state.fed_seqno < high:
            # All channels are there, and the plan may have forgotten it.
            state = state.fed(epoch=self._ledger.last_epoch_at(high), seqno=high)
        state = state.stopping(StopReason.ASKED)
        return state, [*inserts, *self._stop_markers(state)]

    def _behind_committed(self, state: CoordinatorState, positions: Sequence[Position]) -> CoordinatorState:
        """Mark as fed what all channels have committed: lanes that held it when the queue was lost, or when others
        started over, may have committed it before it was fed again.
        """
        low = low_watermark(positions)
        return state if low <= state.fed_seqno else state.fed(epoch=self._ledger.last_epoch_at(low), seqno=low)

    def _epochs_to_meet(self, state: CoordinatorState, positions: Sequence[Position]) -> list[Epoch]:
        """Those that are not fed, up to where the furthest channel is."""
        low, high = low_watermark(positions), max(position.seqno for position in positions)
        ahead = self._ledger.epochs(after_number=state.fed_epoch, above_seqno=low) if state.fed_seqno < high else ()
        return [epoch for epoch in ahead if epoch.first_seqno <= high]

    def _with_tasks(
        self, state: CoordinatorState, epochs: Sequence[Epoch], positions: Sequence[Position]
    ) -> tuple[CoordinatorState, list[Insert]]:
        if state.in_groups:
            return with_groups(state, self._names, epochs, positions, self._limits.groups)
        inserts: list[Insert] = []
        for epoch in epochs:
            inserts += self._epoch_tasks(epoch, positions)
            state = state.fed(epoch=epoch.number, seqno=epoch.last_seqno)
        return state, inserts

    def _next_epochs(self, state: CoordinatorState, positions: Sequence[Position]) -> tuple[list[Epoch], bool]:
        """The epochs to feed now, and whether nothing of the run is left to feed after them."""
        low, high = low_watermark(positions), max(position.seqno for position in positions)
        waiting = self._ledger.epochs(above_seqno=low, limit=self._limits.epochs + 1)
        ahead = [epoch for epoch in waiting if epoch.number <= state.fed_epoch]
        count, size = len(ahead), sum(sum(epoch.bytes_) for epoch in ahead)
        chosen: list[Epoch] = []
        candidates = self._ledger.epochs(after_number=state.fed_epoch, above_seqno=low, limit=self._limits.epochs + 1)
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
        kind = Kind.BRANCH if epoch.kind is EpochKind.PARALLEL else Kind.BARRIER
        tasks = [
            Insert(
                queue=self._names.channel(channel),
                value=ChannelWork.of_epoch(epoch, channel, kind).to_json(),
                sequence=epoch.number,
                task_id=self._names.task_id("channel", channel, epoch.number),
                # Held by a lane that has yet to notice what the target has lost.
                skip_colliding=True,
            )
            for channel in behind
        ]
        if kind is Kind.BARRIER and behind:
            serial = SerialWork(
                epoch=epoch.number,
                first_seqno=epoch.first_seqno,
                last_seqno=epoch.last_seqno,
                rows=epoch.row_count,
                reason=epoch.reason,
            )
            tasks.append(
                Insert(
                    queue=self._names.barrier,
                    value={"arrived": [], "channels": len(behind), "serial": serial.to_json()},
                    at=PARKED,
                    task_id=self._names.barrier_id(epoch.number),
                    skip_colliding=True,
                )
            )
        return tasks

    def _stop_markers(self, state: CoordinatorState) -> list[Insert]:
        seqno = state.fed_seqno
        if state.in_groups:
            return [stop_task(self._names, state.fed_epoch, seqno)]
        return [
            Insert(
                queue=self._names.channel(channel),
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
                task_id=self._names.task_id("stop", channel),
                skip_colliding=True,
            )
            for channel in range(state.channels)
        ]

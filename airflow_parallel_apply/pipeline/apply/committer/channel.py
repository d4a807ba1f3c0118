"""Consistency `channel`: each channel commits its units by itself, as large as its backlog makes them.

Before a unit's commit nothing of it is seen; its staging bears the claim's token, which the next claimant's replaces.
Between commit and finish its tasks lie at or below the channel's position, and cost the next claimant nothing.

A unit of insertions alone is *direct*: where it is loaded its rows go straight into their tables, and are committed
there with the position, so the commit here finds it done. Such a unit begins once its tasks are the lane's. What the
target does not take so is staged and merged as any other unit, and so are those behind it, for a while.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.apply.batch import Batch, ChannelClaim
from airflow_parallel_apply.pipeline.apply.channel_rows import channel_rows
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import (
    Conflict,
    ConflictReason,
    Deadlock,
    DirectRefused,
    FatalError,
    TargetError,
)
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay
from airflow_parallel_apply.queue.model import Task

_logger = logging.getLogger(__name__)

_MAX_UNIT_TASKS: Final = 256
_FIRST_UNIT_BYTES: Final = 16 * 2**20
_STAGED_AFTER_REFUSAL: Final = 16
"""Units of insertions that are staged behind one that was refused; twice as many behind the next one."""

_MAX_DEADLOCKS: Final = 2
"""So often in a row a unit may lose a deadlock before its channel asks for a merge point."""


class ChannelCommitter:
    """See `Committer`. What meets another channel's rows or locks has all channels merge."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._deadlocks = 0
        self._refused: DirectRefused | None = None
        self._staged_count, self._staged_after_refusal = 0, _STAGED_AFTER_REFUSAL
        # Those of the channel that was begun last.
        self._claim: ChannelClaim
        self._limit_bytes: int

    def begin(self, work: ChannelWork) -> Batch:
        claim = self._claim = ChannelClaim(
            pipeline=self._context.config.pipeline,
            generation=self._context.names.generation,
            channel=work.channel,
            channels=self._context.config.channels,
            routing=self._context.routing,
        )
        self._limit_bytes = min(_FIRST_UNIT_BYTES, self._context.config.unit_max_bytes)
        position = self._context.take(work.channel, claim.token)
        held = self._context.renewer.held(CLAIM)
        state = self._context.coordinator.state()
        batch = claim.batch(
            [held, *self._behind(held, _MAX_UNIT_TASKS)],
            position.seqno,
            limit_bytes=self._limit_bytes,
            is_held_up=state.fails_below,
            may_be_direct=self._may_be_direct(),
        )
        return self._with_origin(batch)

    def following(self, batch: Batch) -> Batch | None:
        # Units double while there is a backlog: small first ones start the overlap, large ones reduce more.
        self._limit_bytes = min(self._limit_bytes * 2, self._context.config.unit_max_bytes)
        behind = self._behind(batch.tasks[-1], len(batch.tasks) + _MAX_UNIT_TASKS)
        if not behind or behind[0].value["kind"] != Kind.BRANCH:
            return None
        first = ChannelWork.of_task(behind[0]).first_seqno
        state = self._context.coordinator.state()
        # What does not begin where this unit ends is for whoever claims it to judge.
        if first > batch.reached + 1 or state.holds_up([first]):
            return None
        found = self._claim.batch(
            behind,
            batch.reached,
            limit_bytes=self._limit_bytes,
            is_held_up=state.fails_below,
            may_be_direct=self._may_be_direct(),
        )
        return self._with_origin(found)

    def stage(self, unit: Unit) -> StagedUnit:
        try:
            return self._context.stage.stage(unit)
        except DirectRefused as error:
            _logger.info("staging a unit of insertions: %s", error)
            self._refused = error
            return self._context.stage.stage(unit.staged())

    def complete(self, done: Batch, staged: StagedUnit | None, following: Batch | None) -> Batch | None:
        if (refused := self._refused) is not None:
            self._refused = None
            self._staged_count, self._staged_after_refusal = self._staged_after_refusal, 2 * self._staged_after_refusal
            self._context.note_after(ReworkKind.RESTAGING, refused, seqno=done.reached)
        if staged is not None:
            self._commit(staged)
        return self._finish(done, following)

    def meet(self, batch: Batch, error: FatalError) -> bool:
        if not isinstance(error, Conflict) or self._context.config.channels == 1:
            return False
        channel, conflict = self._claim.channel, error
        _logger.info("channel %d asks for a merge point: %s", channel, conflict)
        after = batch.first_seqno - 1
        self._context.retrying(self._context.target.leave)
        self._context.exchange(lambda head: self._context.coordinator.merge_points.open(head, channel, after, conflict))
        return True

    def _may_be_direct(self) -> bool:
        """True unless insertions were refused a short while ago. The plan must be in the target's database, which looks
        at it in the transaction that moves the position.
        """
        self._staged_count = max(self._staged_count - 1, 0)
        return not self._staged_count and self._context.session.is_one_database

    def _with_origin(self, batch: Batch) -> Batch:
        return replace(batch, unit=self._context.with_origin(batch.unit)) if batch.unit and batch.is_direct else batch

    def _behind(self, task: Task, limit: int) -> list[Task]:
        waiting = self._context.queue.tasks(self._context.names.channel(self._claim.channel), limit=limit)
        return [found for found in waiting if (found.sequence or 0) > (task.sequence or 0)]

    def _commit(self, staged: StagedUnit) -> None:
        with self._context.report.time("commit"):
            try:
                self._context.commit(staged.unit, [Merge(staged)])
                self._deadlocks = 0
            except Deadlock as error:
                self._deadlocks += 1
                if staged.unit.channels == 1 or self._deadlocks < _MAX_DEADLOCKS:
                    raise
                self._deadlocks = 0
                raise Conflict(str(error), reason=ConflictReason.DEADLOCK, table=error.table) from error
            except TargetError as error:
                # With one channel an exact replay is always right, and where it fails too it names the seqno. With
                # several it is for foreign keys that are checked here, which tie their tables to one channel.
                if staged.unit.channels > 1 and not self._context.routing.colocation:
                    raise
                self._context.note_after(ReworkKind.REPLAY, error, seqno=staged.unit.last_seqno)
                rows = partial(channel_rows, self._context.log, staged.unit)
                self._context.commit(staged.unit, [Replay(rows)])
                self._context.report.replayed_units += 1
        self._context.report.units += 1
        self._context.report.direct_units += staged.is_committed
        self._context.report.rows += staged.row_count

    def _finish(self, done: Batch, following: Batch | None) -> Batch | None:
        behind = [task.ref for task in done.tasks[1:]]
        if following is None:
            self._context.target.leave()

        def finish(held: Task) -> Task | None:
            return self._context.coordinator.finish(
                [held.ref, *behind],
                then=() if following is None else following.tasks,
                lease=self._context.config.lease,
            )

        if self._context.exchange(finish) is not None:
            return following
        if following is not None:
            # It is held up: behind a failure, or while the channels merge.
            self._context.retrying(self._context.target.leave)
        return None

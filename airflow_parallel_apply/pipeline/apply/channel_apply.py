"""The branches of one channel as units: the next is staged while one merges, and what is committed is finished.

Before a unit's commit nothing of it is seen; its staging bears the claim's token, which the next claimant's replaces.
Between commit and finish its tasks lie at or below the channel's position, and cost the next claimant nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.apply.batch import Batch, ChannelClaim, new_token, require_reached
from airflow_parallel_apply.pipeline.apply.channel_rows import channel_rows
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM
from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.coordinate.state import UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import Conflict, ConflictReason, Deadlock, FatalError, TargetError
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay
from airflow_parallel_apply.queue.model import Task

_logger = logging.getLogger(__name__)

_CANCEL_POLL_SECONDS: Final = 1.0
_MAX_UNIT_TASKS: Final = 256
_FIRST_UNIT_BYTES: Final = 16 * 2**20
_MAX_DEADLOCKS: Final = 2
"""So often in a row a unit may lose a deadlock before its channel asks for a merge point."""


class ChannelApply:
    """Serves the branches of whatever channel's head the lane holds. `check`: raises where the lane is to end."""

    def __init__(self, context: LaneContext, check: Callable[[], None]) -> None:
        self._context = context
        self._check = check
        self._deadlocks = 0
        self._stagers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stage")

    def close(self) -> None:
        """Wait for what is being staged."""
        self._stagers.shutdown(wait=True, cancel_futures=True)

    def serve(self, channel: int) -> None:
        """Apply units of one channel, staging the next while one merges, until its queue shows something else.

        After a transient error it begins anew with the head that it holds: staging may be gone with the target's
        crash, and the position says what was committed.
        """
        claim = self._claim_of(channel)
        limit = min(_FIRST_UNIT_BYTES, self._context.config.unit_max_bytes)
        position = self._context.take(channel, claim.token)
        batch: Batch | None = self._first_batch(claim, position.seqno, limit)
        staging = self._start_staging(batch)
        try:
            while batch is not None:
                try:
                    staged = self._staged(batch, staging)
                    # Units double while there is a backlog: small first ones start the overlap, large ones reduce more.
                    limit = min(limit * 2, self._context.config.unit_max_bytes)
                    following = self._following(claim, batch, limit)
                    staging = self._start_staging(following)
                    if staged is not None:
                        self._commit(staged)
                except FatalError as error:
                    self._context.stage.cancel()
                    if isinstance(error, Conflict) and self._context.config.channels > 1:
                        self._meet(batch, channel, error)
                    else:
                        self._failed(batch, channel, error)
                    return
                if following is not None and self._is_held_up(following.tasks):
                    self._context.stage.cancel()
                    following = None
                batch = self._finish(batch, following)
                self._context.retrying(self._context.coordinator.feed)
                self._context.signals.report(self._context.report)
                self._check()
        except BaseException:
            self._context.stage.cancel()
            raise

    def require_stopped(self, marker: ChannelWork) -> None:
        """Become the owner of a channel that met its stop marker, which ends former owners. Its position is there,
        since every epoch that is fed moves it, with rows or without. Errors: `OwnershipLost` where it is not.
        """
        position = self._context.take(marker.channel, new_token())
        require_reached(marker, position.seqno)
        self._context.target.leave()

    def _claim_of(self, channel: int) -> ChannelClaim:
        return ChannelClaim(
            pipeline=self._context.config.pipeline,
            generation=self._context.names.generation,
            channel=channel,
            channels=self._context.config.channels,
            routing=self._context.routing,
        )

    # --- cutting ---

    def _first_batch(self, claim: ChannelClaim, after_seqno: int, limit_bytes: int) -> Batch:
        """The unit that begins with the head that the lane holds."""
        held = self._context.renewer.held(CLAIM)
        waiting = self._context.queue.tasks(self._context.names.channel(claim.channel), limit=_MAX_UNIT_TASKS)
        behind = [task for task in waiting if (task.sequence or 0) > (held.sequence or 0)]
        state = self._context.coordinator.state()
        return claim.batch([held, *behind], after_seqno, limit_bytes=limit_bytes, is_held_up=state.fails_below)

    def _following(self, claim: ChannelClaim, batch: Batch, limit_bytes: int) -> Batch | None:
        """The next unit of the channel; None when its queue shows something else, or it is held up."""
        last = batch.tasks[-1]
        waiting = self._context.queue.tasks(
            self._context.names.channel(claim.channel), limit=len(batch.tasks) + _MAX_UNIT_TASKS
        )
        behind = [task for task in waiting if (task.sequence or 0) > (last.sequence or 0)]
        if not behind or behind[0].value["kind"] != Kind.BRANCH:
            return None
        first = ChannelWork.of_task(behind[0]).first_seqno
        state = self._context.coordinator.state()
        # What does not begin where this unit ends is for whoever claims it to judge.
        if first > batch.reached + 1 or state.holds_up([first]):
            return None
        return claim.batch(behind, batch.reached, limit_bytes=limit_bytes, is_held_up=state.fails_below)

    def _is_held_up(self, tasks: Sequence[Task]) -> bool:
        """Whether branches that are taken together may not be begun now: behind a failure, or while channels merge."""
        return self._context.coordinator.state().holds_up(ChannelWork.of_task(task).first_seqno for task in tasks)

    # --- staging and committing ---

    def _start_staging(self, batch: Batch | None) -> Future[StagedUnit] | None:
        """Begin in the background; an epoch without rows for the channel is a sync, done without Spark."""
        if batch is None or batch.unit is None:
            return None
        unit = batch.unit
        if unit.row_count == 0:
            done: Future[StagedUnit] = Future()
            done.set_result(_without_rows(unit))
            return done
        return self._stagers.submit(self._context.retrying, lambda: self._context.stage.stage(unit))

    def _staged(self, batch: Batch, staging: Future[StagedUnit] | None) -> StagedUnit | None:
        if staging is None:
            return None
        with self._context.report.time("stage"):
            # A timeout that staging itself met is its result, and not for this loop to wait out.
            while not wait([staging], timeout=_CANCEL_POLL_SECONDS).done:
                if self._context.signals.cancelled():
                    self._context.stage.cancel()
                    raise Cancelled("the lane was cancelled", op="stage", seqno=batch.first_seqno)
            return staging.result()

    def _commit(self, staged: StagedUnit) -> None:
        with self._context.report.time("commit"):
            try:
                self._context.session.commit(staged.unit, [Merge(staged)])
                self._deadlocks = 0
            except Deadlock as error:
                self._deadlocks += 1
                if staged.unit.channels == 1 or self._deadlocks < _MAX_DEADLOCKS:
                    raise
                self._deadlocks = 0
                raise Conflict(str(error), reason=ConflictReason.DEADLOCK, table=error.table) from error
            except TargetError:
                # With one channel an exact replay is always right, and where it fails too it names the seqno. With
                # several it is for foreign keys that are checked here, which tie their tables to one channel.
                if staged.unit.channels > 1 and not self._context.routing.ties:
                    raise
                rows = partial(channel_rows, self._context.log, staged.unit)
                self._context.session.commit(staged.unit, [Replay(rows)])
                self._context.report.replayed_units += 1
        self._context.report.units += 1
        self._context.report.rows += staged.row_count

    def _finish(self, done: Batch, following: Batch | None) -> Batch | None:
        """Delete the unit's tasks and hold the channel's next head, in one modify; None where that is held up."""
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
            # A failure was recorded just before.
            self._context.stage.cancel()
            self._context.retrying(self._context.target.leave)
        return None

    def _meet(self, batch: Batch, channel: int, conflict: Conflict) -> None:
        """Rows or locks of other channels are in the way: have all channels merge behind what each has committed."""
        _logger.info("channel %d asks for a merge point: %s", channel, conflict)
        after = batch.first_seqno - 1
        self._context.retrying(self._context.target.leave)
        self._context.exchange(lambda head: self._context.coordinator.merge_points.open(head, channel, after, conflict))

    def _failed(self, batch: Batch, channel: int, error: FatalError) -> None:
        seqno = batch.first_seqno
        error.at(pipeline=self._context.config.pipeline, channel=channel, seqno=seqno)
        failure = UnitFailure(seqno=seqno, channel=channel, message=error.telling(self._context.config.error_values))
        _logger.error("%s", failure.message)

        def fail(head: Task) -> None:
            self._context.coordinator.fail(head, failure)

        self._context.renewer.exchange(CLAIM, fail)


def _without_rows(unit: Unit) -> StagedUnit:
    return StagedUnit(unit=unit, tables=(), row_count=0, seconds=0.0)

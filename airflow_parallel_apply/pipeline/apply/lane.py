"""A lane: claims the head of a channel's queue, applies it, finishes it; any channel, until all are stopped.

Who waits for whom: a lane waits only while every unfinished channel is held by somebody else under an unexpired
lease, or while its own capture turn brings more; it holds no open transaction and no Spark task meanwhile (law 5).

What a crash leaves: before the commit, staging that belongs to a dead claim (the next claimant drops it) and a claim
that comes free; after the commit and before the finish, tasks that lie at or below their channel's position (the next
claimant deletes them). So a lane may be killed at any line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from airflow_parallel_apply.pipeline.apply.batch import Batch, ChannelClaim
from airflow_parallel_apply.pipeline.apply.channel_rows import channel_rows
from airflow_parallel_apply.pipeline.apply.fences import Fences
from airflow_parallel_apply.pipeline.apply.keeper import Keeper
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import Phase, StopReason, UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind
from airflow_parallel_apply.pipeline.epoch import StagedUnit
from airflow_parallel_apply.pipeline.errors import (
    Conflict,
    ConflictReason,
    Deadlock,
    FatalError,
    OwnershipLost,
    ParallelApplyError,
    TargetError,
)
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.protocol import Store
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import DependencyError, QueueError, Task

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLL: Final = timedelta(seconds=1)
"""How long a lane without work waits before it looks at the stop marker and the phase again."""

_MAX_UNIT_TASKS: Final = 256
_FIRST_UNIT_BYTES: Final = 16 * 2**20
_MAX_DEADLOCKS: Final = 2
"""So often in a row a unit may lose a deadlock before its channel asks for a merge point."""

_CLAIM: Final = "claim"


class Cancelled(ParallelApplyError):
    """The lane was told to end; what was not committed is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSignals:
    """What the outside tells a lane. `stop_requested` is asked before a claim, at most once a second."""

    stop_requested: Callable[[], bool]
    cancelled: Callable[[], bool]
    report: Callable[[LaneReport], None]


class Lane:
    """One lane's main thread. `background_failure` tells of its capture turns."""

    def __init__(
        self,
        *,
        config: PipelineConfig,
        routing: Routing,
        lane: int,
        claimant: str,
        coordinator: Coordinator,
        target: Target,
        log: LogReader,
        store: Store,
        stage: Stage,
        keeper: Keeper,
        signals: LaneSignals,
        report: LaneReport,
        background_failure: Callable[[], ParallelApplyError | None],
    ) -> None:
        self._config = config
        self._routing = routing
        self._claimant = claimant
        self._coordinator = coordinator
        self._queue = coordinator.queue
        self._names = coordinator.names
        self._target = target
        self._log = log
        self._store = store
        self._stage = stage
        self._keeper = keeper
        self._signals = signals
        self._report = report
        self._background_failure = background_failure
        self._deadlocks = 0
        self._fences = Fences(
            config=config,
            routing=routing,
            coordinator=coordinator,
            target=target,
            log=log,
            stage=stage,
            report=report,
            retrying=self._retrying,
            exchange=lambda step: keeper.exchange(_CLAIM, step),
        )
        self._stagers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stage")
        channels = [(lane + offset) % config.channels for offset in range(config.channels)]
        self._own_first = [self._names.channel(channel) for channel in channels]

    def run(self) -> None:
        """Work until every stop marker is acknowledged, or a failure leaves nothing to hand out."""
        try:
            self._retrying(self._require_generation)
            while True:
                self._check()
                state = self._retrying(self._coordinator.state)
                if state.phase is Phase.DRAINED:
                    self._report.stop_seqno = state.stop_seqno
                    self._report.stop_asked = state.stop_reason is StopReason.ASKED
                    return
                if state.merging is not None:
                    self._retrying(self._coordinator.merge_points.gather)
                task = self._retrying(self._claim)
                if task is not None:
                    self._serve(task)
                elif state.phase is Phase.FAILED and not self._retrying(self._may_come_free):
                    return
                else:
                    # Whoever finished last may have died before it fed the channels.
                    self._retrying(self._coordinator.feed)
        finally:
            self._keeper.hold(_CLAIM, None)
            self._stagers.shutdown(wait=True, cancel_futures=True)

    # --- claiming ---

    def _claim(self) -> Task | None:
        with self._report.time("idle"):
            first = [self._names.serial], self._own_first[:1]
            for queues in first:
                task = self._queue.try_claim(queues, claimant=self._claimant, lease=self._config.lease)
                if task is not None:
                    return task
            return self._queue.claim(
                [self._names.serial, *self._own_first],
                claimant=self._claimant,
                lease=self._config.lease,
                timeout=_POLL,
                # The last stop marker to go brings no task, but the end.
                wake=self._own_first,
            )

    def _may_come_free(self) -> bool:
        """Whether some queue's head is claimable, or held under a lease that ends."""
        heads = [head for queue in (self._names.serial, *self._own_first) for head in self._queue.tasks(queue, limit=1)]
        return any(head.at < PARKED for head in heads)

    def _check(self) -> None:
        if self._signals.cancelled():
            raise Cancelled("the lane was cancelled", op="apply", pipeline=self._config.pipeline)
        failure = self._background_failure()
        if failure is not None:
            raise failure
        if self._signals.stop_requested():
            self._retrying(self._coordinator.request_stop)

    def _require_generation(self) -> None:
        state = self._target.fence()
        if state is None or state.generation != self._names.generation:
            raise generation_over(self._config.pipeline, self._names.generation)

    # --- serving ---

    def _serve(self, task: Task) -> None:
        self._keeper.hold(_CLAIM, task)
        try:
            if task.queue == self._names.serial:
                self._fences.serve(task)
                return
            work = ChannelWork.of_task(task)
            self._report.channels.add(work.channel)
            state = self._retrying(self._coordinator.state)
            if state.fails_below(work.first_seqno):
                self._exchange(self._coordinator.park)
            elif work.kind is Kind.FENCE:
                self._exchange(self._coordinator.arrive)
            elif state.merging is not None:
                self._exchange(self._coordinator.merge_points.join)
            elif work.kind is Kind.STOP:
                self._serve_stop(work)
            else:
                self._retrying(lambda: self._serve_branches(work.channel))
        except (DependencyError, OwnershipLost) as error:
            # Somebody took the claim over, after a stall of ours; the generation itself is checked by the next read.
            _logger.warning("lost a claim, going on: %s", error)
            self._give_back()
            self._retrying(self._require_generation)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._keeper.hold(_CLAIM, None)
            self._signals.report(self._report)

    def _give_back(self) -> None:
        """What the lane holds comes free now instead of at its lease's end, where that can still be said."""
        with suppress(DependencyError, OwnershipLost, QueueError):
            self._keeper.exchange(_CLAIM, self._coordinator.give_back)

    def _exchange(self, step: Callable[[Task], None]) -> None:
        """Let go of the claimed task by a step of the coordinator's."""
        self._retrying(lambda: self._keeper.exchange(_CLAIM, step))

    def _is_held_up(self, task: Task) -> bool:
        """Whether a branch may not be begun now: behind a failure, or while the channels merge."""
        state = self._coordinator.state()
        return state.merging is not None or state.fails_below(_work(task).first_seqno)

    def _renewed(self, task: Task) -> Task:
        return self._queue.renew(task, claimant=self._claimant, lease=self._config.lease)

    def _serve_stop(self, work: ChannelWork) -> None:
        """Move an idle channel's position to the stop's seqno, then acknowledge."""
        claim = self._claim_of(work.channel)

        def move() -> None:
            position = self._target.take(work.channel, generation=claim.generation, token=claim.token)
            if position.seqno < work.last_seqno:
                unit = claim.unit(position.seqno, work.last_seqno)
                self._target.commit(StagedUnit(unit=unit, tables=(), row_count=0, seconds=0.0))
            self._target.leave()

        self._retrying(move)

        def acknowledge(marker: Task) -> None:
            self._coordinator.acknowledge(marker, work.channel)

        self._exchange(acknowledge)

    def _serve_branches(self, channel: int) -> None:
        """Apply units of one channel, staging the next while one merges, until its queue shows something else.

        After a transient error it begins anew with the head that it holds: staging may be gone with the target's
        crash, and the position says what was committed.
        """
        # A lane that stood still, or lost its sessions to the next holder, must not take the channel back from it.
        self._keeper.exchange(_CLAIM, self._renewed)
        claim = self._claim_of(channel)
        limit = min(_FIRST_UNIT_BYTES, self._config.unit_max_bytes)
        position = self._target.take(channel, generation=claim.generation, token=claim.token)
        batch: Batch | None = self._first_batch(claim, position.seqno, limit)
        staging = self._start_staging(batch)
        try:
            while batch is not None:
                try:
                    staged = self._staged(batch, staging)
                    # Units double while there is a backlog: small first ones start the overlap, large ones reduce more.
                    limit = min(limit * 2, self._config.unit_max_bytes)
                    following = self._following(claim, batch, limit)
                    staging = self._start_staging(following)
                    if staged is not None:
                        self._commit(staged)
                except FatalError as error:
                    self._stage.cancel()
                    if isinstance(error, Conflict) and self._config.channels > 1:
                        self._meet(batch, channel, error)
                    else:
                        self._failed(batch, channel, error)
                    return
                if following is not None and self._is_held_up(following.tasks[0]):
                    self._stage.cancel()
                    following = None
                self._finish(batch, following)
                batch = following
                self._retrying(self._coordinator.feed)
                self._signals.report(self._report)
                self._check()
        except BaseException:
            self._stage.cancel()
            raise

    def _claim_of(self, channel: int) -> ChannelClaim:
        return ChannelClaim(
            pipeline=self._config.pipeline,
            generation=self._names.generation,
            channel=channel,
            channels=self._config.channels,
            routing=self._routing,
        )

    def _first_batch(self, claim: ChannelClaim, after_seqno: int, limit_bytes: int) -> Batch:
        """The unit that begins with the head that the lane holds."""
        held = self._keeper.held(_CLAIM)
        waiting = self._queue.tasks(self._names.channel(claim.channel), limit=_MAX_UNIT_TASKS)
        behind = [task for task in waiting if (task.sequence or 0) > (held.sequence or 0)]
        return claim.batch([held, *behind], after_seqno, limit_bytes=limit_bytes)

    def _following(self, claim: ChannelClaim, batch: Batch, limit_bytes: int) -> Batch | None:
        """The next unit of the channel; None when its queue shows something else, or it is held up."""
        last = batch.tasks[-1]
        waiting = self._queue.tasks(self._names.channel(claim.channel), limit=len(batch.tasks) + _MAX_UNIT_TASKS)
        behind = [task for task in waiting if (task.sequence or 0) > (last.sequence or 0)]
        if not behind or behind[0].value["kind"] != Kind.BRANCH or self._is_held_up(behind[0]):
            return None
        return claim.batch(behind, batch.reached, limit_bytes=limit_bytes)

    # --- staging and committing ---

    def _start_staging(self, batch: Batch | None) -> Future[StagedUnit] | None:
        """Begin in the background; an epoch without rows for the channel is a sync, done without Spark."""
        if batch is None or batch.unit is None:
            return None
        unit = batch.unit
        if unit.row_count == 0:
            done: Future[StagedUnit] = Future()
            done.set_result(StagedUnit(unit=unit, tables=(), row_count=0, seconds=0.0))
            return done
        return self._stagers.submit(retrying, lambda: self._stage.stage(unit), on_retry=self._count_retry)

    def _staged(self, batch: Batch, staging: Future[StagedUnit] | None) -> StagedUnit | None:
        if staging is None:
            return None
        with self._report.time("stage"):
            while True:
                try:
                    return staging.result(timeout=_POLL.total_seconds())
                except FutureTimeout:
                    if self._signals.cancelled():
                        self._stage.cancel()
                        raise Cancelled("the lane was cancelled", op="stage", seqno=batch.first_seqno) from None

    def _commit(self, staged: StagedUnit) -> None:
        with self._report.time("commit"):
            try:
                self._target.commit(staged)
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
                if staged.unit.channels > 1 and not self._routing.ties:
                    raise
                self._target.replay(staged.unit, channel_rows(self._log, staged.unit))
                self._report.replayed_units += 1
        if staged.unit.channel is not None:
            self._store.acknowledge(staged.unit.channel, staged.unit.last_seqno)
        self._report.units += 1
        self._report.rows += staged.row_count

    def _finish(self, done: Batch, following: Batch | None) -> None:
        """Delete the unit's tasks and hold the channel's next head, in one modify."""
        behind = [task.ref for task in done.tasks[1:]]
        if following is None:
            self._target.leave()

        def finish(held: Task) -> Task | None:
            return self._coordinator.finish(
                [held.ref, *behind],
                then_claim=None if following is None else following.tasks[0],
                lease=self._config.lease,
            )

        self._retrying(lambda: self._keeper.exchange(_CLAIM, finish))

    def _meet(self, batch: Batch, channel: int, conflict: Conflict) -> None:
        """Rows or locks of other channels are in the way: have all channels merge behind what each has committed."""
        _logger.info("channel %d asks for a merge point: %s", channel, conflict)
        after = batch.first_seqno - 1
        self._retrying(self._target.leave)
        self._exchange(lambda head: self._coordinator.merge_points.open(head, channel, after, conflict))

    def _failed(self, batch: Batch, channel: int, error: FatalError) -> None:
        seqno = batch.first_seqno
        error.at(pipeline=self._config.pipeline, channel=channel, seqno=seqno)
        self._mark_failed(UnitFailure(seqno=seqno, channel=channel, message=str(error)))

    def _mark_failed(self, failure: UnitFailure) -> None:
        _logger.error("%s", failure.message)

        def fail(task: Task) -> None:
            self._coordinator.fail(task, failure)

        self._keeper.exchange(_CLAIM, fail)

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, on_retry=self._count_retry, progress=lambda: self._report.units)

    def _count_retry(self, error: BaseException) -> None:
        self._report.retries += 1
        _logger.warning("trying again: %s", error)
        if self._signals.cancelled():
            raise Cancelled("the lane was cancelled", op="apply", pipeline=self._config.pipeline) from error


def generation_over(pipeline: str, generation: int) -> OwnershipLost:
    """What a lane says when another run, or a later `open` of its own, goes on with the pipeline."""
    return OwnershipLost(
        f"generation {generation} is over",
        op="apply",
        pipeline=pipeline,
        hint="Clear the task open with everything downstream of it.",
    )


def _work(task: Task) -> ChannelWork:
    return ChannelWork.of_task(task)

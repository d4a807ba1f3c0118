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
from contextlib import suppress
from datetime import timedelta
from typing import Final

from airflow_parallel_apply.pipeline.apply.branches import Branches
from airflow_parallel_apply.pipeline.apply.fences import Fences
from airflow_parallel_apply.pipeline.apply.keeper import CLAIM, Keeper
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import Cancelled, LaneSignals, Retries
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import Phase, StopReason
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.protocol import Store
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import DependencyError, QueueError, Task

_logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = timedelta(milliseconds=50)
_LONGEST_PAUSE: Final = timedelta(seconds=1)
"""How long a lane without work waits before it looks at the stop marker and the phase again: longer each time. The end
wakes it, unless it comes between the lane's look at the phase and its wait.
"""


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
        self._claimant = claimant
        self._coordinator = coordinator
        self._queue = coordinator.queue
        self._names = coordinator.names
        self._target = target
        self._keeper = keeper
        self._signals = signals
        self._report = report
        self._background_failure = background_failure
        self._retrying = Retries(config.pipeline, signals, report)
        self._fences = Fences(
            config=config,
            routing=routing,
            coordinator=coordinator,
            target=target,
            log=log,
            stage=stage,
            report=report,
            retrying=self._retrying,
            exchange=lambda step: keeper.exchange(CLAIM, step),
        )
        self._branches = Branches(
            config=config,
            routing=routing,
            claimant=claimant,
            coordinator=coordinator,
            target=target,
            log=log,
            store=store,
            stage=stage,
            keeper=keeper,
            signals=signals,
            report=report,
            retrying=self._retrying,
            check=self._check,
        )
        channels = [(lane + offset) % config.channels for offset in range(config.channels)]
        self._own_first = [self._names.channel(channel) for channel in channels]
        self._pause = _FIRST_PAUSE

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
                    self._pause = _FIRST_PAUSE
                    self._serve(task)
                elif state.phase is Phase.FAILED and not self._retrying(self._may_come_free):
                    return
                else:
                    self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                    # Whoever finished last may have died before it fed the channels.
                    self._retrying(self._coordinator.feed)
        finally:
            self._keeper.hold(CLAIM, None)
            self._branches.close()

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
                timeout=self._pause,
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
        self._keeper.hold(CLAIM, task)
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
                self._retrying(lambda: self._branches.serve(work.channel))
        except (DependencyError, OwnershipLost) as error:
            # Somebody took the claim over, after a stall of ours; the generation itself is checked by the next read.
            _logger.warning("lost a claim, going on: %s", error)
            self._give_back()
            self._retrying(self._require_generation)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._keeper.hold(CLAIM, None)
            self._signals.report(self._report)

    def _give_back(self) -> None:
        """What the lane holds comes free now instead of at its lease's end, where that can still be said."""
        with suppress(DependencyError, OwnershipLost, QueueError):
            self._keeper.exchange(CLAIM, self._coordinator.give_back)

    def _exchange(self, step: Callable[[Task], None]) -> None:
        """Let go of the claimed task by a step of the coordinator's."""
        self._retrying(lambda: self._keeper.exchange(CLAIM, step))

    def _serve_stop(self, work: ChannelWork) -> None:
        """Move an idle channel's position to the stop's seqno, then acknowledge."""
        self._retrying(lambda: self._branches.move(work.channel, work.last_seqno))

        def acknowledge(marker: Task) -> None:
            self._coordinator.acknowledge(marker, work.channel)

        self._exchange(acknowledge)


def generation_over(pipeline: str, generation: int) -> OwnershipLost:
    """What a lane says when another run, or a later `open` of its own, goes on with the pipeline."""
    return OwnershipLost(
        f"generation {generation} is over",
        op="apply",
        pipeline=pipeline,
        hint="Clear the task open with everything downstream of it.",
    )

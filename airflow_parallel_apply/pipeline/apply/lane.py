"""A lane: claims the head of a channel's queue, applies it, finishes it; any channel, until all are stopped.

Who waits for whom: a lane waits only while every unfinished channel is held by somebody else under an unexpired
lease, or while its own capture turn brings more; it holds no open transaction and no Spark task meanwhile (law 5).

What a crash leaves: before the commit, staging that belongs to a dead claim (the next claimant drops it) and a claim
that comes free; after the commit and before the finish, tasks that lie at or below their channel's position (the next
claimant deletes them). So a lane may be killed at any line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.apply.barriers import Barriers
from airflow_parallel_apply.pipeline.apply.batch import new_token, require_reached
from airflow_parallel_apply.pipeline.apply.channel_apply import ChannelApply
from airflow_parallel_apply.pipeline.apply.committer.open import open_committers
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM
from airflow_parallel_apply.pipeline.apply.ownership import generation_over
from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, StopReason
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError, RetryableError
from airflow_parallel_apply.queue.model import DependencyError, QueueError, QueueMisconfigured, Task

_logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = timedelta(milliseconds=50)
_LONGEST_PAUSE: Final = timedelta(seconds=1)
"""The longest time that a lane without work waits before it looks at the stop marker and the phase again; the pauses
grow. Drains wake the lane, except between its look at the phase and its wait.
"""

_IDLE_LOOKS: Final = 16
"""Looks for work in vain after which a lane compares the queue with the positions."""


class Lane:
    """One lane's main thread. `capture` begins its capture turns, unless it takes them; `background_failure` tells of
    them.
    """

    def __init__(
        self,
        context: LaneContext,
        *,
        lane: int,
        capture: Callable[[], None],
        background_failure: Callable[[], ParallelApplyError | None],
    ) -> None:
        self._context = context
        self._capture = capture
        self._background_failure = background_failure
        self._barriers = Barriers(context)
        self._branches = ChannelApply(context, open_committers(context), self._check)
        count = context.config.channels
        self._own_first = [context.names.channel((lane + offset) % count) for offset in range(count)]
        self._pause = _FIRST_PAUSE
        self._idle_count = 0

    def run(self) -> None:
        """Work until every stop marker is acknowledged, or a failure leaves nothing to hand out."""
        try:
            self._context.retrying(self._require_generation)
            while True:
                self._check()
                state = self._context.retrying(self._context.coordinator.state)
                if state.phase is Phase.DRAINED:
                    self._context.report.stop_seqno = state.stop_seqno
                    self._context.report.stop_asked = state.stop_reason is StopReason.ASKED
                    return
                if state.phase is Phase.RUNNING and state.until_seqno is None:
                    # From the start; or since the bound, which was known, was lost with the target's last commits.
                    self._capture()
                if state.merging is not None:
                    self._context.retrying(self._context.coordinator.merge_points.gather)
                task = self._context.retrying(partial(self._claim, self._first_queues(state)))
                if task is not None:
                    self._pause, self._idle_count = _FIRST_PAUSE, 0
                    self._serve(task)
                elif state.phase is Phase.FAILED and not self._context.retrying(self._may_come_free):
                    return
                else:
                    self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                    # Whoever finished last may have died before it fed the channels.
                    self._context.retrying(self._context.coordinator.feed)
                    self._recover_sometimes()
        except QueueMisconfigured:
            # A pipeline that was removed takes its queue's tables along.
            self._require_generation()
            raise
        finally:
            self._context.renewer.hold(CLAIM, None)
            self._branches.close()

    def _recover_sometimes(self) -> None:
        """A target that lost commits may leave channels behind whose queues are empty: nothing else would tell. Nor of
        a lane that died between the bound and the plan up to it, which is for the next capture turn.
        """
        self._idle_count += 1
        if self._idle_count % _IDLE_LOOKS == 0:
            self._capture()
            self._context.retrying(self._context.coordinator.recover)

    # --- claiming ---

    def _first_queues(self, state: CoordinatorState) -> list[str]:
        """Those that the lane looks into before all others: its own channel's, or, where commits wait for groups in
        their order, those with the first groups.
        """
        names = self._context.names
        turns = [names.channel(channel) for channel in state.channels_in_turn] if state.in_groups else []
        return [names.serial, *(turns or self._own_first[:1])]

    def _claim(self, first: Sequence[str]) -> Task | None:
        with self._context.report.time("idle"):
            for queue in first:
                task = self._context.queue.try_claim(
                    [queue], claimant=self._context.claimant, lease=self._context.config.lease
                )
                if task is not None:
                    return task
            return self._context.queue.claim(
                [self._context.names.serial, *self._own_first],
                claimant=self._context.claimant,
                lease=self._context.config.lease,
                timeout=self._pause,
                # The last stop marker to go, or the one stop, brings no task, but the end.
                wake=[self._context.names.serial, *self._own_first],
            )

    def _may_come_free(self) -> bool:
        """True if some queue's head is claimable, or held under a lease that ends."""
        heads = [
            head
            for queue in (self._context.names.serial, *self._own_first)
            for head in self._context.queue.tasks(queue, limit=1)
        ]
        return any(head.at < PARKED for head in heads)

    def _check(self) -> None:
        if self._context.signals.cancelled():
            raise Cancelled("the lane was cancelled", op="apply", pipeline=self._context.config.pipeline)
        failure = self._background_failure()
        if failure is not None:
            # Whose lease is over may be told why: by a newer run, or by a target or ledger that lost commits.
            with suppress(RetryableError):
                self._require_generation()
            raise failure
        if self._context.signals.stop_requested():
            self._context.retrying(self._context.coordinator.request_stop)

    def _require_generation(self) -> None:
        self._context.require_pipeline()
        generation = self._context.names.generation
        for found in self._context.session.generations():
            if found != generation:
                raise generation_over(self._context.config.pipeline, generation, found=found)

    # --- serving ---

    def _serve(self, task: Task) -> None:
        self._context.renewer.hold(CLAIM, task)
        try:
            with self._context.watch.working():
                if task.queue == self._context.names.serial:
                    self._barriers.serve(task)
                else:
                    self._serve_channel(ChannelWork.of_task(task))
        except (DependencyError, OwnershipLost) as error:
            # Somebody took the claim over, after a stall of ours; the generation itself is checked by the next read.
            _logger.warning("lost a claim, going on: %s", error)
            self._give_back()
            self._context.retrying(self._require_generation)
            self._context.retrying(self._context.coordinator.recover)
        except BaseException:
            self._give_back()
            raise
        finally:
            self._context.renewer.hold(CLAIM, None)
            self._context.signals.report(self._context.report)

    def _serve_channel(self, work: ChannelWork) -> None:
        self._context.report.channels.add(work.channel)
        state = self._context.retrying(self._context.coordinator.state)
        if state.fails_below(work.first_seqno):
            self._context.exchange(self._context.coordinator.park)
        elif work.kind is Kind.BARRIER:
            self._context.exchange(self._context.coordinator.arrive)
        elif state.merging is not None:
            self._context.exchange(self._context.coordinator.merge_points.join)
        elif work.kind is Kind.STOP:
            self._serve_stop(work)
        else:
            self._context.retrying(lambda: self._branches.serve(work))

    def _give_back(self) -> None:
        """Free what the lane holds now instead of at its lease's end, if the queue still takes the message."""
        with suppress(DependencyError, OwnershipLost, QueueError):
            self._context.renewer.exchange(CLAIM, self._context.coordinator.give_back)

    def _serve_stop(self, work: ChannelWork) -> None:
        """Acknowledge that the channel's position is at the stop's seqno."""
        self._context.retrying(lambda: self._require_stopped(work))

        def acknowledge(marker: Task) -> None:
            self._context.coordinator.acknowledge(marker, work.channel)

        self._context.exchange(acknowledge)

    def _require_stopped(self, marker: ChannelWork) -> None:
        """Become the owner of a channel that met its stop marker, which ends former owners. Its position is there,
        since every epoch that is fed moves it, with rows or without. Errors: `OwnershipLost` where it is not.
        """
        position = self._context.take(marker.channel, new_token())
        require_reached(marker, position.seqno)
        self._context.target.leave()

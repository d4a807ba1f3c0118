"""The units of a channel: the next is staged in the background while one is completed, and failures are marked once.

What one unit is, and what makes it visible, the lane's `Committer` for its kind of task says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from airflow_parallel_apply.pipeline.apply.batch import Batch
from airflow_parallel_apply.pipeline.apply.committer.protocol import Committer
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM
from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.coordinate.state import UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.queue.model import Task

_logger = logging.getLogger(__name__)

_CANCEL_POLL_SECONDS: Final = 1.0


class ChannelApply:
    """Serves whatever channel's head the lane holds. `check`: raises where the lane is to end."""

    def __init__(self, context: LaneContext, committers: Mapping[Kind, Committer], check: Callable[[], None]) -> None:
        self._context = context
        self._committers = committers
        self._check = check
        self._stagers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stage")

    def close(self) -> None:
        """Wait for what is being staged."""
        self._stagers.shutdown(wait=True, cancel_futures=True)

    def serve(self, work: ChannelWork) -> None:
        """Apply units of one channel, staging the next while one is completed, until its queue shows something else.

        After a transient error it begins anew with the head that it holds: staging may be gone with the target's
        crash, and the target says what was committed.
        """
        committer = self._committers[work.kind]
        batch: Batch | None = committer.begin(work)
        staging = self._start_staging(committer, batch)
        try:
            while batch is not None:
                try:
                    staged = self._staged(batch, staging)
                    following = committer.following(batch)
                    # What is committed where it is loaded begins once it is this lane's (law 4).
                    waits = following is not None and following.is_direct
                    staging = self._start_staging(committer, None if waits else following)
                    begun = committer.complete(batch, staged, following)
                    if waits:
                        staging = self._start_staging(committer, begun)
                except FatalError as error:
                    self._context.stage.cancel()
                    if not committer.meet(batch, error):
                        self._failed(batch, error)
                    return
                if begun is None and following is not None:
                    self._context.stage.cancel()
                batch = begun
                self._context.retrying(self._context.coordinator.feed)
                self._context.signals.report(self._context.report)
                self._check()
        except BaseException:
            self._context.stage.cancel()
            raise

    def _start_staging(self, committer: Committer, batch: Batch | None) -> Future[StagedUnit] | None:
        """Begin in the background; an epoch without rows for the channel is a sync, done without Spark."""
        if batch is None or batch.unit is None:
            return None
        unit = batch.unit
        if unit.row_count == 0:
            done: Future[StagedUnit] = Future()
            done.set_result(_without_rows(unit))
            return done
        return self._stagers.submit(self._context.retrying, lambda: committer.stage(unit))

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

    def _failed(self, batch: Batch, error: FatalError) -> None:
        seqno, channel = batch.first_seqno, batch.channel
        error.at(pipeline=self._context.config.pipeline, channel=channel, seqno=seqno)
        failure = UnitFailure(seqno=seqno, channel=channel, message=error.telling(self._context.config.error_values))
        _logger.error("%s", failure.message)

        def fail(head: Task) -> None:
            self._context.coordinator.fail(head, failure)

        self._context.renewer.exchange(CLAIM, fail)


def _without_rows(unit: Unit) -> StagedUnit:
    return StagedUnit(unit=unit, tables=(), row_count=0, seconds=0.0)

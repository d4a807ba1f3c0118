"""The context of a lane, shared by its main thread and both kinds of work that it does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM, LeaseRenewer
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.apply.signals import Cancelled, LaneSignals
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.apply.target_watch import TargetWatch
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.tasks import Names
from airflow_parallel_apply.pipeline.errors import Deadlock, FatalError, ParallelApplyError, StagingLost
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Unit, UnitKind
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.steps import Step
from airflow_parallel_apply.queue.model import Task
from airflow_parallel_apply.queue.protocol import Queue
from airflow_parallel_apply.queue.renewals import renewed

_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneContext:
    """The context of one lane. `renewer` holds its claim under the role `CLAIM`."""

    config: PipelineConfig
    routing: Routing
    claimant: str
    coordinator: Coordinator
    session: PipelineSession
    require_pipeline: Callable[[], object]
    """Raises `OwnershipLost` where the pipeline was removed, or another run owns it."""
    log: LogReader
    stage: Stage
    renewer: LeaseRenewer
    watch: TargetWatch
    signals: LaneSignals
    report: LaneReport
    show_offset: Callable[[Offset], str]
    """As the source's connector does."""
    asked_end: Offset | None = None
    """Where the run ends, if somebody asked for that: the parameter `until`."""
    is_feed: bool = False
    """True if the target keeps every change."""

    @property
    def queue(self) -> Queue:
        """The coordinator's, which all that the lane does goes through."""
        return self.coordinator.queue

    @property
    def ledger(self) -> Ledger:
        """The session's."""
        return self.session.ledger

    @property
    def target(self) -> Target:
        """The session's."""
        return self.session.target

    @property
    def names(self) -> Names:
        """The names of the generation's queues."""
        return self.coordinator.names

    def retrying(self, call: Callable[[], T]) -> T:
        """Call until it does not fail with a transient error; the report counts them, the lane's cancel ends them."""
        return retrying(call, on_retry=self._count_retry, progress=lambda: self.report.units)

    def exchange(self, step: Callable[[Task], Task | None]) -> Task | None:
        """Run `step` on the claimed task's newest version, and hold what it returns instead."""
        return self.retrying(lambda: self.renewer.exchange(CLAIM, step))

    def unit(
        self, kind: UnitKind, *, token: str, after_seqno: int, last_seqno: int, row_count: int, epoch: int
    ) -> Unit:
        """A unit of this pipeline and generation."""
        return Unit(
            pipeline=self.config.pipeline,
            generation=self.names.generation,
            kind=kind,
            channels=self.config.channels,
            token=token,
            after_seqno=after_seqno,
            last_seqno=last_seqno,
            row_count=row_count,
            routing=self.routing,
            epoch=epoch,
        )

    def take(self, channel: int | None, token: str, *, group: int | None = None) -> Position:
        """Own a channel (None: all) under a new token, if the claim is this lane's still: one that stood still, or lost
        its sessions to the next holder, must not take them back from it. As `Target.take`; errors: `DependencyError`
        and `OwnershipLost` where the claim is another's.
        """
        self.renewer.exchange(CLAIM, self._renewed)
        position = self.target.take(
            channel,
            generation=self.names.generation,
            token=token,
            routing_digest=self.routing.digest,
            group=group,
        )
        # Behind the claim, which ends with the positions that it was written into.
        self.require_pipeline()
        return position

    def take_part(self, unit: Unit) -> bool:
        """Be the one who stages a part of a group, as `take` is for channels; says whether it may be prepared."""
        self.renewer.exchange(CLAIM, self._renewed)
        may_prepare = self.target.take_part(unit)
        self.require_pipeline()
        return may_prepare

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        """As `PipelineSession.commit`, with the unit's origin; what comes to nothing is counted."""
        try:
            self.session.commit(self.with_origin(unit), steps)
        except ParallelApplyError as error:
            self.note_after(ReworkKind.ROLLBACK, error, seqno=unit.last_seqno)
            raise

    def with_origin(self, unit: Unit) -> Unit:
        """The unit with the origin of its last transaction; one that only moves positions has none."""
        if not unit.row_count or unit.origin is not None:
            return unit
        planned = self._planned_end(unit)
        if planned is not None:
            return replace(unit, origin=planned)
        (last,) = self.log.transactions(unit.last_seqno - 1, unit.last_seqno).to_pylist()
        return replace(unit, origin=CommitOrigin(offset=last["end_offset"], commit_time=last["commit_time"]))

    def _planned_end(self, unit: Unit) -> CommitOrigin | None:
        """The end of the epoch that a unit ends with; None where it ends inside of one, or the plan does not tell."""
        if unit.epoch is None:
            return None
        for epoch in self.ledger.epochs(after_number=unit.epoch - 1, limit=1):
            if epoch.last_seqno == unit.last_seqno and epoch.end_offset is not None and epoch.end_time is not None:
                return CommitOrigin(offset=epoch.end_offset, commit_time=epoch.end_time)
        return None

    def note_after(self, kind: ReworkKind, error: ParallelApplyError, *, seqno: int) -> None:
        """Count the rework that an error caused: in the report, and for `status`. Not there where a former claimant
        would write, or the target is away: the error is worth more than its count.
        """
        is_told = isinstance(error, FatalError | Deadlock | StagingLost)
        self.note(Rework.after(kind, error), seqno=seqno, is_told=is_told)

    def note(self, rework: Rework, *, seqno: int, is_told: bool = True) -> None:
        """The same of any rework. `is_told`: for `status`, too."""
        self.report.note(rework)
        if is_told:
            with suppress(ParallelApplyError):
                self.ledger.count_rework(rework, seqno=seqno)

    def _renewed(self, task: Task) -> Task:
        return renewed(self.queue, task, claimant=self.claimant, lease=self.config.lease)

    def _count_retry(self, error: BaseException) -> None:
        self.report.retries += 1
        _logger.warning("trying again: %s", error)
        if self.signals.cancelled():
            raise Cancelled("the lane was cancelled", op="apply", pipeline=self.config.pipeline) from error

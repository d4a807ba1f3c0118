"""Work that a lane does for all channels: serial units and merge points, with all of them drained, and commits of
groups.

All are transactions at the target that hold every position.

A serial unit is one critical transaction, or several that dense barriers made one. If several are refused as
one, they go on one by one, so that the one that fails is alone, with everything before it in place.

A crash leaves the task of the queue `serial`: before a commit nothing happened, after it the positions say so.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.apply.batch import new_token
from airflow_parallel_apply.pipeline.apply.groups import GroupCommits
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.merges import Merges
from airflow_parallel_apply.pipeline.apply.removals import ByHand, RowsLeft
from airflow_parallel_apply.pipeline.apply.serial import serial_steps
from airflow_parallel_apply.pipeline.apply.serial_parts import is_single, serial_parts, single_transactions
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.coordinate.state import MergePoint, UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import Kind, OrderedWork, SerialWork
from airflow_parallel_apply.pipeline.errors import FatalError, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.log.held import HeldRows
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.epoch import Serial, Unit
from airflow_parallel_apply.pipeline.model.position import all_equal, low_watermark
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkKind
from airflow_parallel_apply.pipeline.target.steps import Capability, Merge
from airflow_parallel_apply.queue.model import Task

_logger = logging.getLogger(__name__)

_AS_THIS_ONE: Final = "Use ddl=skip and the same until again."
_EPOCHS_AT_ONCE: Final = 256


class Barriers:
    """Serves the queue `serial` for one lane."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._merges = Merges(context)
        self._groups = GroupCommits(context)

    def serve(self, task: Task) -> None:
        """Apply it and let the channels go on; a failure is marked in the queue, once."""
        kind = task.value.get("kind")
        if kind == Kind.MERGE:
            self._serve_merge()
        elif kind == Kind.COMMIT:
            self._serve_group(OrderedWork.of_task(task))
        elif kind == Kind.STOP:
            self._serve_stop(OrderedWork.of_task(task).work.last_seqno)
        else:
            self._serve_critical(SerialWork.of_task(task))
        self._context.retrying(self._context.coordinator.feed)

    # --- groups of epochs ---

    def _serve_group(self, ordered: OrderedWork) -> None:
        try:
            self._context.retrying(lambda: self._groups.commit(ordered))
        except FatalError as error:
            self._fail_here(error)
            return
        self._context.exchange(self._context.coordinator.groups.finish)

    def _serve_stop(self, seqno: int) -> None:
        """Become the owner of all channels, which ends former owners, and acknowledge that they are at the stop."""
        slowest = self._context.retrying(lambda: self._context.take(None, new_token()))
        if slowest.seqno < seqno:
            raise OwnershipLost(f"a channel is at seqno {slowest.seqno}, before the stop: the target has lost commits")
        self._context.retrying(self._context.target.leave)
        self._context.exchange(self._context.coordinator.groups.stop)

    # --- critical transactions ---

    def _serve_critical(self, work: SerialWork) -> None:
        try:
            self._context.retrying(lambda: self._apply_critical(work))
        except FatalError as error:
            self._fail_here(error)
            return
        self._context.report.serial_units += 1
        self._context.report.rows += work.rows
        self._context.exchange(self._context.coordinator.finish_serial)

    def _apply_critical(self, work: SerialWork) -> None:
        """Become every channel's owner, then apply what is left of the unit. A former claimant may have committed some
        of its parts: all positions moved together, so the slowest tells.
        """
        token = new_token()
        slowest = self._context.take(None, token)
        after = slowest.seqno
        if after < work.first_seqno - 1:
            raise OwnershipLost(
                f"a channel is at seqno {after}, before the serial epoch: the target has lost commits", seqno=after
            )
        if after >= work.last_seqno:
            return
        left = self._context.unit(
            Serial(),
            token=token,
            after_seqno=after,
            last_seqno=work.last_seqno,
            row_count=work.rows,
            epoch=work.epoch,
        )
        # Several transactions in one unit are few and small.
        log = self._context.log if is_single(left) else HeldRows(self._context.log, after, work.last_seqno)
        for part in serial_parts(left, log):
            try:
                self._commit_critical(part, log)
            except FatalError as error:
                transactions = single_transactions(part)
                if len(transactions) == 1:
                    raise
                _logger.warning("several transactions were refused as one, going on one by one: %s", error)
                for transaction in transactions:
                    self._commit_critical(transaction, log)
        self._context.target.leave()

    def _commit_critical(self, unit: Unit, log: RowReader) -> None:
        """Stage outside any transaction, then one transaction for all of it."""
        capabilities = self._context.target.capabilities
        steps_of = partial(
            serial_steps,
            unit,
            log,
            self._context.stage,
            self._context.config.ddl,
            show_offset=self._context.show_offset,
            runs_ddl=Capability.DEFINE in capabilities,
            by_hand=None if Capability.REMOVE in capabilities else self._by_hand(),
        )
        with self._context.report.time("stage"):
            steps = steps_of()
        with self._context.report.time("commit"):
            try:
                self._context.commit(unit, steps)
            except TargetError as error:
                if not any(isinstance(step, Merge) for step in steps):
                    raise
                self._context.note_after(ReworkKind.REPLAY, error, seqno=unit.last_seqno)
                # All channels stand at one seqno, so an exact replay is right whatever the target checks.
                self._context.target.discard(unit.token)
                self._context.commit(unit, steps_of(exactly=True))
                self._context.report.replayed_units += 1

    def _by_hand(self) -> ByHand:
        is_skip = self._context.config.ddl is DdlPolicy.SKIP
        return ByHand(is_feed=self._context.is_feed, seen_to=self._context.asked_end if is_skip else None)

    # --- merge points ---

    def _serve_merge(self) -> None:
        point = self._context.retrying(self._context.coordinator.state).merging
        if point is None:
            raise OwnershipLost("the merge point was closed by another lane", op="merge")
        try:
            reached = self._context.retrying(lambda: self._merge(point))
        except FatalError as error:
            self._fail_here(error)
            return

        def close(held: Task) -> None:
            self._context.coordinator.merge_points.close(held, reached)

        self._context.exchange(close)

    def _merge(self, point: MergePoint) -> int:
        """Bring all channels to one seqno, which is returned: nothing is left to do where a former claimant did it."""
        token = new_token()
        self._context.take(None, token)
        positions = self._context.target.positions()
        highest = max(position.seqno for position in positions)
        last_seqno = max(highest, point.until_seqno)
        if not (all_equal(positions) and highest == last_seqno):
            _logger.info(
                "merging all channels up to seqno %d: %s conflict in channel %d",
                last_seqno,
                point.reason,
                point.channel,
            )
            self._merges.bring(positions, last_seqno, token)
            self._context.target.leave()
        self._count(point, last_seqno)
        return last_seqno

    def _count(self, point: MergePoint, seqno: int) -> None:
        rework = Rework(kind=ReworkKind.MERGE_POINT, reason=point.reason, table=point.table)
        self._context.ledger.count_rework(rework, seqno=seqno)
        self._context.report.note(rework)

    # --- both ---

    def _fail_here(self, error: FatalError) -> None:
        """Mark it in the queue, at the least seqno that is not applied."""
        seqno = low_watermark(self._context.retrying(self._context.target.positions)) + 1
        error.at(pipeline=self._context.config.pipeline, seqno=seqno)
        if self._context.config.ddl is DdlPolicy.SKIP and not isinstance(error, RowsLeft):
            error.hint = " ".join(filter(None, (error.hint, _AS_THIS_ONE)))
        failure = UnitFailure(seqno=seqno, channel=None, message=error.telling(self._context.config.error_values))
        _logger.error("%s", failure.message)

        def fail(held: Task) -> None:
            self._context.coordinator.fail(held, failure)

        self._context.exchange(fail)

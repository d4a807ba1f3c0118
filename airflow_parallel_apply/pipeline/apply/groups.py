"""The commit of a group: what all channels staged becomes visible in one transaction, which moves all positions.

What is refused as a set goes on epoch by epoch, each in a commit of its own, change by change where it must: all
channels stand at one seqno, so that is right whatever the target checks, and what fails is alone, with everything
before it in place. A position rests only where an epoch of the plan ends.

A crash before a commit leaves everything as it was, and the task; after it the positions say so. Whoever finds them in
between, or finds that the staging is gone, or that channels stand at different seqnos, stages by one job what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.apply.batch import new_token
from airflow_parallel_apply.pipeline.apply.committer.group import staged_parts
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.merges import Merges
from airflow_parallel_apply.pipeline.coordinate.tasks import OrderedWork, SerialWork
from airflow_parallel_apply.pipeline.errors import (
    Conflict,
    OwnershipLost,
    ParallelApplyError,
    StagingLost,
    TargetError,
)
from airflow_parallel_apply.pipeline.model.epoch import Epoch, Merging, Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.position import all_equal
from airflow_parallel_apply.pipeline.model.rework import INCOMPLETE, TAKEN_OVER, Rework, ReworkKind
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay

_logger = logging.getLogger(__name__)

_EPOCHS_AT_ONCE: Final = 256

_REPLAY_ROWS: Final = 500
"""Below this a Spark job costs more than it saves."""


class GroupCommits:
    """Serves the commits of groups for one lane."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._merges = Merges(context)

    def commit(self, ordered: OrderedWork) -> None:
        """Bring all channels to the group's end; nothing is left to do where a former claimant did it."""
        work = ordered.work
        token = new_token()
        self._context.take(None, token, group=work.epoch)
        positions = self._context.target.positions()
        low, high = min(at.seqno for at in positions), max(at.seqno for at in positions)
        if low >= work.last_seqno:
            return
        if low < work.first_seqno - 1 or high > work.last_seqno:
            raise OwnershipLost(
                f"the channels are at seqno {low} to {high}, outside of the group: the target has lost commits",
                seqno=low,
            )
        if not all_equal(positions):
            self._merges.bring(positions, work.last_seqno, token)
        elif low >= work.first_seqno:
            # A former claimant went on epoch by epoch.
            self._one_by_one(work, low, token)
        else:
            self._commit_whole(ordered, token)
        self._context.target.leave()
        self._context.report.groups += 1

    def _commit_whole(self, ordered: OrderedWork, token: str) -> None:
        work = ordered.work
        unit = self._unit(work.first_seqno - 1, work.last_seqno, rows=work.rows, epoch=work.epoch, token=token)
        tables, row_count = staged_parts(ordered.arrived)
        staged = StagedUnit(unit=unit, tables=tables, row_count=row_count, seconds=0.0)
        try:
            if row_count != work.rows:
                self._context.coordinator.groups.refused()
                staged = self._restaged(unit, INCOMPLETE)
            try:
                self._run(unit, Merge(staged))
                self._context.report.prepared_groups += any(table.is_prepared for table in staged.tables)
            except StagingLost as error:
                _logger.warning("staging the group again: %s", error)
                self._context.coordinator.groups.refused()
                self._run(unit, Merge(self._restaged(unit, error)))
        except TargetError as error:
            _logger.warning("the group was refused as one, going on epoch by epoch: %s", error)
            if isinstance(error, Conflict):
                self._context.ledger.count_rework(Rework.after(ReworkKind.MERGE_POINT, error), seqno=work.last_seqno)
            self._context.target.discard(token)
            self._one_by_one(work, work.first_seqno - 1, token, error)

    def _one_by_one(self, work: SerialWork, after_seqno: int, token: str, refused: TargetError | None = None) -> None:
        """Epoch by epoch behind a seqno: as a set where that goes, unless that was tried. `refused`: the group's error,
        None where a former claimant met it.
        """
        for epoch in self._epochs(after_seqno, work.last_seqno):
            unit = self._unit(
                epoch.first_seqno - 1, epoch.last_seqno, rows=epoch.row_count, epoch=epoch.number, token=token
            )
            cause: TargetError | str = refused or TAKEN_OVER
            was_tried = epoch.first_seqno == work.first_seqno and epoch.number == work.epoch
            if epoch.row_count > _REPLAY_ROWS and not was_tried:
                try:
                    self._run(unit, Merge(self._restaged(unit, cause)))
                    continue
                except TargetError as error:
                    cause = error
                    _logger.warning("epoch %d was refused as one, going on change by change: %s", epoch.number, error)
                    self._context.target.discard(token)
            self._replay(unit, epoch, cause)

    def _epochs(self, after_seqno: int, last_seqno: int) -> Iterator[Epoch]:
        """Planned ones of (after_seqno, last_seqno], in order."""
        while found := self._context.ledger.epochs(above_seqno=after_seqno, limit=_EPOCHS_AT_ONCE):
            for epoch in found:
                if epoch.last_seqno > last_seqno:
                    return
                yield epoch
            after_seqno = found[-1].last_seqno

    def _replay(self, unit: Unit, epoch: Epoch, cause: TargetError | str) -> None:
        log = self._context.log
        self._note(ReworkKind.REPLAY, cause, unit)
        self._run(unit, Replay(lambda: log.rows(epoch.first_seqno - 1, epoch.last_seqno, in_order=True)))
        self._context.report.replayed_units += 1

    def _run(self, unit: Unit, step: Merge | Replay) -> None:
        with self._context.report.time("commit"):
            self._context.commit(unit, [step])
        self._context.report.rows += unit.row_count

    def _restaged(self, unit: Unit, cause: ParallelApplyError | str) -> StagedUnit:
        """All channels' rows by one job, under the claim of this commit."""
        self._note(ReworkKind.RESTAGING, cause, unit)
        self._context.report.restaged_groups += 1
        with self._context.report.time("stage"):
            return self._context.stage.stage(replace(unit, kind=Merging((unit.after_seqno,) * unit.channels)))

    def _note(self, kind: ReworkKind, cause: ParallelApplyError | str, unit: Unit) -> None:
        if isinstance(cause, str):
            self._context.note(Rework(kind=kind, reason=cause, table=None), seqno=unit.last_seqno)
        else:
            self._context.note_after(kind, cause, seqno=unit.last_seqno)

    def _unit(self, after_seqno: int, last_seqno: int, *, rows: int, epoch: int, token: str) -> Unit:
        return self._context.unit(
            Serial(), token=token, after_seqno=after_seqno, last_seqno=last_seqno, row_count=rows, epoch=epoch
        )

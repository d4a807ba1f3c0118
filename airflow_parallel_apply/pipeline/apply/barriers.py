"""What a lane does alone, with all channels drained: serial units and merge points.

Both are transactions at the target that hold every position. A merge point brings the channels, wherever each of them
is, to one seqno with one set-based merge in which all values are freed before any is taken. What that cannot do
(triggers that fire in between, foreign keys that are checked) is replayed change by change, which is right once all
channels are equal: so the second try merges up to where the furthest channel is and replays the rest, in one
transaction again.

A serial unit is one critical transaction, or several that dense barriers made one. What is refused of several as one
goes on one by one, so that what fails is alone, with everything before it in place.

A crash leaves the task of the queue `serial`: before a commit nothing happened, after it the positions say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.apply.batch import new_token
from airflow_parallel_apply.pipeline.apply.channel_rows import colocated_rows
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.serial import is_single, serial_parts, serial_steps, single_transactions
from airflow_parallel_apply.pipeline.coordinate.state import MergePoint, UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import SerialWork, is_merge
from airflow_parallel_apply.pipeline.errors import FatalError, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.log.held import HeldRows
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.epoch import EpochKind, Merging, Serial, StagedUnit, Unit, UnitKind
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay, Step
from airflow_parallel_apply.queue.model import Task

_logger = logging.getLogger(__name__)

_EPOCHS_AT_ONCE: Final = 256


class Barriers:
    """Serves the queue `serial` for one lane."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context

    def serve(self, task: Task) -> None:
        """Apply it and let the channels go on; a failure is marked in the queue, once."""
        if is_merge(task):
            self._serve_merge()
        else:
            self._serve_critical(SerialWork.of_task(task))
        self._context.retrying(self._context.coordinator.feed)

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
        left = self._unit(
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
        steps_of = partial(
            serial_steps,
            unit,
            log,
            self._context.stage,
            self._context.config.ddl,
            show_offset=self._context.show_offset,
        )
        with self._context.report.time("stage"):
            steps = steps_of()
        with self._context.report.time("commit"):
            try:
                self._context.session.commit(unit, steps)
            except TargetError:
                if not any(isinstance(step, Merge) for step in steps):
                    raise
                # All channels stand at one seqno, so an exact replay is right whatever the target checks.
                self._context.target.discard(unit.token)
                self._context.session.commit(unit, steps_of(exactly=True))
                self._context.report.replayed_units += 1

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
        unit = self._merge_unit(positions, last_seqno, token)
        if all_equal(positions) and highest == last_seqno:
            self._count(point, last_seqno)
            return last_seqno
        _logger.info(
            "merging all channels up to seqno %d: %s conflict in channel %d", last_seqno, point.reason, point.channel
        )
        steps = [Merge(self._staged(unit))]
        try:
            self._commit_merge(unit, steps, point)
        except TargetError as error:
            if highest == last_seqno and not self._context.routing.colocation:
                raise
            _logger.warning("the merge was refused, replaying what may be: %s", error)
            self._context.target.discard(token)
            self._commit_merge(unit, self._replaying(unit, positions, highest), point)
            self._context.target.discard(token)
            self._context.report.replayed_units += 1
        self._context.target.leave()
        self._context.report.merge_points += 1
        self._context.report.rows += unit.row_count
        return last_seqno

    def _commit_merge(self, unit: Unit, steps: Sequence[Step], point: MergePoint) -> None:
        with self._context.report.time("commit"):
            self._context.session.commit(unit, steps)
        self._count(point, unit.last_seqno)

    def _count(self, point: MergePoint, seqno: int) -> None:
        self._context.ledger.count_conflict(reason=point.reason, table=point.table, seqno=seqno)

    def _replaying(self, unit: Unit, positions: Sequence[Position], highest: int) -> list[Step]:
        """Merge up to the furthest channel, then replay what is left of the unit. Colocated tables are replayed, not
        merged: each of them lies in one channel, whose own order is always right.
        """
        steps: list[Step] = []
        if not all_equal(positions):
            first = self._merge_unit(positions, highest, unit.token)
            staged = self._staged(first)
            loose = tuple(table for table in staged.tables if table.relation_id not in self._colocated)
            steps.append(Merge(replace(staged, tables=loose)))
            if self._colocated:
                steps.append(Replay(lambda: colocated_rows(self._context.log, first, self._colocated)))
        if highest < unit.last_seqno:
            steps.append(Replay(self._rows(highest, unit.last_seqno)))
        return steps

    @property
    def _colocated(self) -> frozenset[int]:
        """Ids of all definitions of colocated tables."""
        names = {name for tables in self._context.routing.colocation for name in tables}
        return frozenset(found.relation_id for found in self._context.log.state().relations if found.name in names)

    def _staged(self, unit: Unit) -> StagedUnit:
        with self._context.report.time("stage"):
            return self._context.stage.stage(unit)

    def _rows(self, after_seqno: int, last_seqno: int) -> Callable[[], Iterator[pa.RecordBatch]]:
        return lambda: self._context.log.rows(after_seqno, last_seqno, in_order=True)

    def _merge_unit(self, positions: Sequence[Position], last_seqno: int, token: str) -> Unit:
        """All channels' rows, each channel's behind its own position."""
        after = [position.seqno for position in positions]
        rows, number, ending = 0, -1, -1
        while epochs := self._context.ledger.epochs(after_number=number, above_seqno=min(after), limit=_EPOCHS_AT_ONCE):
            for epoch in epochs:
                if epoch.first_seqno <= last_seqno:
                    ending = epoch.number
                if epoch.kind is EpochKind.SERIAL and epoch.last_seqno <= last_seqno:
                    raise OwnershipLost(
                        f"a serial epoch lies between seqno {min(after)} and the merge point's end {last_seqno}: the "
                        "target has lost commits",
                        seqno=min(after),
                    )
                if epoch.last_seqno <= last_seqno:
                    left = zip(epoch.rows, after, strict=True)
                    rows += sum(count for count, seqno in left if epoch.last_seqno > seqno)
            number = epochs[-1].number
            if epochs[-1].last_seqno >= last_seqno:
                break
        return self._unit(
            Merging(tuple(after)),
            token=token,
            after_seqno=min(after),
            last_seqno=last_seqno,
            row_count=rows,
            epoch=ending,
        )

    # --- both ---

    def _unit(
        self, kind: UnitKind, *, token: str, after_seqno: int, last_seqno: int, row_count: int, epoch: int
    ) -> Unit:
        return Unit(
            pipeline=self._context.config.pipeline,
            generation=self._context.names.generation,
            kind=kind,
            channels=self._context.config.channels,
            token=token,
            after_seqno=after_seqno,
            last_seqno=last_seqno,
            row_count=row_count,
            routing=self._context.routing,
            epoch=epoch,
        )

    def _fail_here(self, error: FatalError) -> None:
        """Mark it in the queue, at the least seqno that is not applied."""
        seqno = low_watermark(self._context.retrying(self._context.target.positions)) + 1
        error.at(pipeline=self._context.config.pipeline, seqno=seqno)
        failure = UnitFailure(seqno=seqno, channel=None, message=error.telling(self._context.config.error_values))
        _logger.error("%s", failure.message)

        def fail(held: Task) -> None:
            self._context.coordinator.fail(held, failure)

        self._context.exchange(fail)

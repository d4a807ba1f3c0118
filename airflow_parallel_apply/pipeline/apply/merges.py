"""Bringing channels that stand at different seqnos to one: all their rows in one transaction.

As a set, with every value freed before any is taken; what that cannot do (triggers that fire in between, foreign keys
that are checked) is replayed change by change, which is right once all channels are equal: so the second try merges up
to where the furthest channel is and replays the rest, in one transaction again. Where rows may not be put back, no set
hands values on: the last try, after a conflict, replays all that each channel lacks. It meets, beside the last rows of
a channel that is ahead, states in between of the others; where it is refused, too, the error before it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.apply.channel_rows import channel_rows
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.errors import Conflict, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.model.epoch import EpochKind, Merging, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.position import Position, all_equal
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay, Step

_logger = logging.getLogger(__name__)

_EPOCHS_AT_ONCE: Final = 256


class Merges:
    """For one lane, which holds all positions."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context

    def bring(self, positions: Sequence[Position], last_seqno: int, token: str) -> None:
        """Apply what each channel lacks up to `last_seqno`, and move all positions there, in one transaction."""
        unit = self._unit(positions, last_seqno, token)
        try:
            self._commit(unit, [Merge(self._staged(unit))])
        except TargetError as error:
            self._replay(unit, positions, error)
            self._context.report.replayed_units += 1
        self._context.report.merge_points += 1
        self._context.report.rows += unit.row_count

    def _replay(self, unit: Unit, positions: Sequence[Position], refused: TargetError) -> None:
        highest = max(position.seqno for position in positions)
        is_conflict = isinstance(refused, Conflict)
        if highest < unit.last_seqno or self._context.routing.colocation:
            error = self._try(unit, refused, lambda: self._replaying(unit, positions, highest, refused))
            if error is None:
                return
            refused = error
        # Of what is wrong with a row itself no other order makes it right.
        if (is_conflict or isinstance(refused, Conflict)) and not all_equal(positions):
            rows = partial(channel_rows, self._context.log, unit)
            error = self._try(unit, refused, lambda: [Replay(rows, is_apart=True)])
            if error is None:
                return
            _logger.warning("the replay of all that each channel lacks was refused, too: %s", error)
        raise refused

    def _try(self, unit: Unit, refused: TargetError, steps: Callable[[], list[Step]]) -> TargetError | None:
        """Return what refuses these steps, which are taken in place of those that were refused."""
        _logger.warning("the merge was refused, replaying what may be: %s", refused)
        self._context.note_after(ReworkKind.REPLAY, refused, seqno=unit.last_seqno)
        self._context.target.discard(unit.token)
        try:
            self._commit(unit, steps())
        except TargetError as error:
            return error
        self._context.target.discard(unit.token)
        return None

    def _commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        with self._context.report.time("commit"):
            self._context.commit(unit, steps)

    def _replaying(self, unit: Unit, positions: Sequence[Position], highest: int, refused: TargetError) -> list[Step]:
        """Merge up to the furthest channel, then replay what is left of the unit. Colocated tables are replayed, not
        merged: each of them lies in one channel, whose own order is always right.
        """
        steps: list[Step] = []
        if not all_equal(positions):
            self._context.note_after(ReworkKind.RESTAGING, refused, seqno=unit.last_seqno)
            first = self._unit(positions, highest, unit.token)
            staged = self._staged(first)
            loose = tuple(table for table in staged.tables if table.relation_id not in self._colocated)
            steps.append(Merge(replace(staged, tables=loose)))
            if self._colocated:
                steps.append(Replay(lambda: channel_rows(self._context.log, first, self._colocated)))
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

    def _unit(self, positions: Sequence[Position], last_seqno: int, token: str) -> Unit:
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
        return self._context.unit(
            Merging(tuple(after)),
            token=token,
            after_seqno=min(after),
            last_seqno=last_seqno,
            row_count=rows,
            epoch=ending,
        )

"""Consistency `epoch`: a channel stages or prepares its rows of a group, or those of all channels, and leaves the
commit to one lane.

The group's commit knows what was staged from the moment in which the channel's task is gone; before, it is nobody's.
So a lane that was killed, or stood still past its lease, leaves staging that the next claimant of its task drops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from airflow_parallel_apply.pipeline.apply.batch import Batch, new_token
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, StagedTable, StagedUnit, Unit
from airflow_parallel_apply.queue.model import Task

_MOST_BYTES: Final = 900_000
"""Bytes of JSON that name what a group's parts staged: a queue's value has at most 1 MB."""


class GroupCommitter:
    """See `Committer`. One part at a time: commits, which everybody waits for, go first."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context

    def begin(self, work: ChannelWork) -> Batch:
        unit = self._context.unit(
            GroupPart(work.epoch, None if work.kind.is_of_all else work.channel, prepares=work.kind.prepares),
            token=new_token(),
            after_seqno=work.first_seqno - 1,
            last_seqno=work.last_seqno,
            row_count=work.rows,
            epoch=work.epoch,
        )
        may_prepare = self._context.take_part(unit)
        if may_prepare:
            unit = self._context.with_origin(unit)
        elif unit.prepares:
            unit = replace(unit, kind=GroupPart(work.epoch, unit.channel))
        return Batch((self._context.renewer.held(CLAIM),), unit, work.last_seqno)

    def following(self, batch: Batch) -> Batch | None:
        del batch
        return None

    def stage(self, unit: Unit) -> StagedUnit:
        return self._context.stage.stage(unit)

    def complete(self, done: Batch, staged: StagedUnit | None, following: Batch | None) -> Batch | None:
        del done, following
        part = None if staged is None else named_part(staged)

        def arrive(held: Task) -> None:
            self._context.coordinator.groups.arrive(held, part)

        self._context.exchange(arrive)
        self._context.report.units += 1
        return None

    def meet(self, batch: Batch, error: FatalError) -> bool:
        del batch, error
        return False


def named_part(staged: StagedUnit) -> dict[str, Any] | None:
    """The part's value, None where it would be too large. What is not named there is staged again by the commit."""
    part = part_to_json(staged)
    parts = 1 if staged.unit.channel is None else staged.unit.channels
    return part if len(json.dumps(part)) <= _MOST_BYTES // parts else None


def part_to_json(staged: StagedUnit) -> dict[str, Any]:
    """The value with which a part's task is finished."""
    return {"rows": staged.row_count, "tables": [asdict(table) for table in staged.tables]}


def staged_parts(arrived: Mapping[int, Any]) -> tuple[tuple[StagedTable, ...], int]:
    """All that the parts of a group staged, and the log rows that it was made of."""
    parts = [part for part in arrived.values() if part is not None]
    tables = tuple(StagedTable(**table) for part in parts for table in part["tables"])
    return tables, sum(part["rows"] for part in parts)

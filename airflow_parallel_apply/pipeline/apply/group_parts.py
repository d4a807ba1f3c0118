"""Staging a channel's rows of a group, or those of all channels: outside any transaction on the tables.

What was staged stands in the group's commit from the moment in which this lane's task is gone; before, it is nobody's.
So a lane that was killed, or stood still past its lease, leaves staging that the next claimant of its task drops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any, Final

from airflow_parallel_apply.pipeline.apply.batch import new_token
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import CLAIM
from airflow_parallel_apply.pipeline.apply.signals import Cancelled
from airflow_parallel_apply.pipeline.coordinate.state import UnitFailure
from airflow_parallel_apply.pipeline.coordinate.tasks import ChannelWork, Kind
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, StagedTable, StagedUnit
from airflow_parallel_apply.queue.model import Task

_logger = logging.getLogger(__name__)

_CANCEL_POLL_SECONDS: Final = 1.0


class GroupParts:
    """Serves what channels stage for groups, for one lane."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._stagers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stage part")

    def close(self) -> None:
        """Wait for what is being staged."""
        self._stagers.shutdown(wait=True, cancel_futures=True)

    def serve(self, work: ChannelWork) -> None:
        """Stage it and finish its task with what was staged; a failure is marked in the queue, once."""
        try:
            staged = self._context.retrying(lambda: self._stage(work))
        except FatalError as error:
            self._failed(work, error)
            return
        self._context.report.units += 1

        def arrive(held: Task) -> None:
            self._context.coordinator.groups.arrive(held, part_to_json(staged))

        self._context.exchange(arrive)

    def _stage(self, work: ChannelWork) -> StagedUnit:
        unit = self._context.unit(
            GroupPart(work.epoch, work.channel if work.kind is Kind.STAGE else None),
            token=new_token(),
            after_seqno=work.first_seqno - 1,
            last_seqno=work.last_seqno,
            row_count=work.rows,
            epoch=work.epoch,
        )
        self._context.take_part(unit)
        with self._context.report.time("stage"):
            staging = self._stagers.submit(self._context.stage.stage, unit)
            # A timeout that staging itself met is its result, and not for this loop to wait out.
            while not wait([staging], timeout=_CANCEL_POLL_SECONDS).done:
                if self._context.signals.cancelled():
                    self._context.stage.cancel()
                    raise Cancelled("the lane was cancelled", op="stage", seqno=work.first_seqno)
            return staging.result()

    def _failed(self, work: ChannelWork, error: FatalError) -> None:
        channel = work.channel if work.kind is Kind.STAGE else None
        error.at(pipeline=self._context.config.pipeline, channel=channel, seqno=work.first_seqno)
        failure = UnitFailure(
            seqno=work.first_seqno, channel=channel, message=error.telling(self._context.config.error_values)
        )
        _logger.error("%s", failure.message)

        def fail(head: Task) -> None:
            self._context.coordinator.fail(head, failure)

        self._context.renewer.exchange(CLAIM, fail)


def part_to_json(staged: StagedUnit) -> dict[str, Any]:
    """What a part's task is finished with."""
    return {"rows": staged.row_count, "tables": [asdict(table) for table in staged.tables]}


def staged_parts(arrived: Mapping[int, Any]) -> tuple[tuple[StagedTable, ...], int]:
    """All that the parts of a group staged, and the log rows that it was made of."""
    tables = tuple(StagedTable(**table) for part in arrived.values() for table in part["tables"])
    return tables, sum(part["rows"] for part in arrived.values())

"""What the outside tells a lane, and how often it has to try again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.errors import ParallelApplyError

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Cancelled(ParallelApplyError):
    """The lane was told to end; what was not committed is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSignals:
    """What the outside tells a lane. `stop_requested` is asked before a claim, at most once a second."""

    stop_requested: Callable[[], bool]
    cancelled: Callable[[], bool]
    report: Callable[[LaneReport], None]


class Retries:
    """Calls until it does not fail with a transient error; the lane's report counts them, its cancel ends them."""

    def __init__(self, pipeline: str, signals: LaneSignals, report: LaneReport) -> None:
        self._pipeline = pipeline
        self._signals = signals
        self._report = report

    def __call__(self, call: Callable[[], T]) -> T:
        return retrying(call, on_retry=self._count, progress=lambda: self._report.units)

    def _count(self, error: BaseException) -> None:
        self._report.retries += 1
        _logger.warning("trying again: %s", error)
        if self._signals.cancelled():
            raise Cancelled("the lane was cancelled", op="apply", pipeline=self._pipeline) from error

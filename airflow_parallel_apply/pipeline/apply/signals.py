"""Signals from outside to a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.errors import ParallelApplyError


class Cancelled(ParallelApplyError):
    """The lane was told to end; what was not committed is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSignals:
    """Signals from outside to a lane. `stop_requested` is asked before a claim, at most once a second."""

    stop_requested: Callable[[], bool]
    cancelled: Callable[[], bool]
    report: Callable[[LaneReport], None]

"""Messages between a task and its driver, as pickled values: both run the same installation as the same user."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.run.values import OpenedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneWork:
    """Be a lane of this run. Answered by `Reported`, then `Done` with the last report."""

    opened: OpenedRun
    config: PipelineConfig
    source: Endpoint
    target: Endpoint
    queue: QueueEndpoint | None
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyWork:
    """Be the copier between these two; `CopyCall`s follow. `log_url`: where the log will be."""

    source: Endpoint
    target: Endpoint
    log_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCall:
    """Copy these parts. Answered by `Done`, or `Failed`."""

    order: CopyOrder
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookWork:
    """Look at log and target from the executors. Answered by `Done` with what was found, or `Failed`."""

    log_url: str
    target: Endpoint


class Signal(Enum):
    """A signal from the task, at any time."""

    STOP = "stop"
    """Somebody asked the run to stop all its channels."""
    CANCEL = "cancel"
    """Give back what is held, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The application runs. `ui_url`: of its pages."""

    application_id: str
    ui_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A line for the task's log. `level`: of `logging`."""

    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The lane's progress."""

    report: LaneReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The end of the work, or of a call."""

    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The same, with its error."""

    error: Exception


Work = LaneWork | CopyWork | LookWork
ToDriver = Work | CopyCall | Signal
ToTask = Started | Logged | Reported | Done | Failed

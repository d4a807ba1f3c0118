"""Reports of captures and preparations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStep:
    """The changes that one step of `capture` made durable. `done`: everything at or below the asked offset is in the
    log.
    """

    captured_offset: Offset
    first_seqno: int | None
    last_seqno: int
    row_count: int
    transaction_count: int
    done: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoLog:
    """A first run's copy that goes into the log, as its first transactions: who hears of it, and who stops it."""

    report: Callable[[CopyProgress], None]
    cancelled: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared pipeline: what there is, and what was made for it, in sentences for the user. `warnings`: what was
    found that a run lives with.
    """

    log_id: str
    stream: str
    selection: str
    tables: tuple[str, ...]
    created: tuple[str, ...]
    warnings: tuple[Finding, ...] = ()

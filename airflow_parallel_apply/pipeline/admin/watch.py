"""Looking at a pipeline without owning it: what waits for changes, or for the lease, asks here. Changes nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.open import is_copying
from airflow_parallel_apply.pipeline.copy.protocol import NO_GENERATION
from airflow_parallel_apply.pipeline.errors import SourceError, SourceInUse
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, LogReader, ResumePoint
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.plan.bounds import boundary
from airflow_parallel_apply.pipeline.source.open import open_source

_COPYING: Final = "its first run copies the source's rows, see parallel-apply status"
_CHANGES: Final = "changes were committed at the source"
_UNFIT: Final = "the source cannot be read from where the log stands"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """The owner of a pipeline under a lease that lasts, or the one who copies for it, if there is one; the last
    generation; up to where all channels have applied.
    """

    owner: str | None
    generation: int
    applied_seqno: int
    lapsed_owner: str | None = None
    """The owner that has not released the pipeline, though its lease is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look. `reason`: why a run would have something to do, or None. Then `generation` is the
    pipeline's and the rest is the log's, for a watcher that cannot see the log.
    """

    reason: str | None = None
    generation: int = NO_GENERATION
    captured_offset: Offset = 0
    resume: ResumePoint | None = None

    @property
    def place(self) -> LogPlace:
        """The log's."""
        return LogPlace(captured_offset=self.captured_offset, resume=self.resume)


def look_for_changes(
    config: PipelineConfig, source: Endpoint, target: Endpoint, *, interval: Interval | None = None
) -> Look:
    """Cheap: decodes at most one transaction at the source.

    With an interval, which the source is past, no reason is for good: what comes later is not of the interval. A source
    that cannot be looked at now, or does not fit the log, is a reason: `capture` waits for it, or says why, since it
    compares more of the two. Errors: other ones of source, log and target.
    """
    with closing(open_pipeline(target, config.pipeline)) as reading:
        state = reading.ledger.state()
        if state is None:
            return Look(reason="it is the pipeline's first run")
        if state.clean_stop_seqno is None and not state.is_owned:
            return Look(reason="the run before ended without a clean shutdown")
        applied = low_watermark(reading.target.positions())
        log = open_reader(config.log_url)
        if interval is not None and _is_covered(log, reading.ledger, applied, interval):
            return Look()
    if state.clean_stop_seqno is None:
        return Look(reason="another run is under way")
    captured = log.state()
    if captured.last_seqno > applied:
        return Look(reason=f"captured transactions wait to be applied, from seqno {applied + 1}")
    found = Look(generation=state.generation, captured_offset=captured.captured_offset, resume=captured.resume)
    with closing(open_capture(source, config)) as looking:
        try:
            reason = _CHANGES if looking.has_changes(captured.place) else None
        except SourceInUse:
            reason = "another capture reads the source"
        except SourceError:
            reason = _UNFIT
    return replace(found, reason=reason)


def changes_since(config: PipelineConfig, source: Endpoint, target: Endpoint, before: Look) -> str | None:
    """As `look_for_changes`, without the log: why to look again where the log is, or None. For hosts that need not see
    the log's directory. While the pipeline stands still since `before` the log does, too, but for captures outside of
    runs; after one of those the source has let go of what `before` knew.
    """
    with closing(open_pipeline(target, config.pipeline)) as reading:
        state = reading.ledger.state()
        if state is None or state.generation != before.generation or state.clean_stop_seqno is None:
            return "the pipeline was run, or changed"
    with closing(open_source(source, config)) as looking:
        try:
            looking.release(before.place)
            return _CHANGES if looking.has_changes(before.place, None) else None
        except SourceError:
            # For whoever has the log to say, with the log's own captured offset.
            return _UNFIT


def source_is_past(config: PipelineConfig, source: Endpoint, time: datetime) -> bool:
    """True if everything with an earlier commit time has committed at the source."""
    with closing(open_source(source, config)) as looking:
        return looking.is_past(time)


def lease_view(pipeline: str, target: Endpoint) -> LeaseView:
    """As it is now."""
    with closing(open_pipeline(target, pipeline)) as reading:
        state = reading.ledger.state()
        if state is None:
            owner = _COPYING if is_copying(target, pipeline) else None
            return LeaseView(owner=owner, generation=NO_GENERATION, applied_seqno=NO_SEQNO)
        return LeaseView(
            owner=state.owner if state.is_owned else None,
            lapsed_owner=None if state.is_owned else state.owner,
            generation=state.generation,
            applied_seqno=low_watermark(reading.target.positions()),
        )


def _is_covered(log: LogReader, ledger: Ledger, applied_seqno: int, interval: Interval) -> bool:
    """True if all of an interval is applied: a run ended there or later, or the log shows it."""
    covered = ledger.covered_time(applied_seqno)
    if covered is not None and covered >= interval.end:
        return True
    first_after = boundary(log, interval.end)
    return first_after is not None and first_after <= applied_seqno + 1

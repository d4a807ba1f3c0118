"""The bounds of a run, and the places where its channels stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError, GapAhead, Unavailable
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger, RunBounds
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.interval import Interval, moment
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.plan.bounds import Gap, gap_before, last_seqno_of_run
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.pipeline.source.protocol import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """The end that somebody asked for: as it was typed, and what it means to the source."""

    text: str
    offset: Offset


def asked_until(source: Endpoint, text: str) -> Until | None:
    """The parameter `until`; None where it is empty. Errors: `ConfigurationError`."""
    if not text:
        return None
    try:
        return Until(text=text, offset=source_connector(source).parse_offset(text))
    except ConfigurationError as error:
        hint = f"{error.hint} Leave until empty for everything that is committed when the run first opens."
        raise ConfigurationError(f"parameter until: {error.message}", hint=hint.strip()) from error


def for_source(config: PipelineConfig) -> PipelineConfig:
    """The configuration for what looks at the source once the run's end is fixed. `ddl=skip` takes tables as the
    catalog shows them now; changes behind that end, which nobody has looked at, would be among them.
    """
    return replace(config, ddl=DdlPolicy.REFUSE) if config.ddl is DdlPolicy.SKIP else config


def stopped_at(positions: Sequence[Position]) -> int | None:
    """The seqno of a clean shutdown, where the channels stand at one."""
    return low_watermark(positions) if all_equal(positions) else None


def freeze(
    source: Source, ledger: Ledger, *, run_id: str, until: Until | None = None, interval: Interval | None
) -> RunBounds:
    """Freeze a run's bound: the offset `until`, else the end of its interval, else what is committed now (law 11).

    Errors: `Unavailable` while the source is not past the interval; `ConfigurationError` for an `until` that the source
    has not come to, or that is not the frozen one, since a frozen bound stays that of its run.
    """
    interval = interval if until is None else None
    frozen = ledger.run_bounds(run_id)
    if (
        frozen is not None
        and (frozen.until_time is None) == (interval is None)
        and (interval is None or (frozen.from_time, frozen.until_time) == (interval.start, interval.end))
    ):
        return _as_asked(frozen, until)
    if interval is not None and not source.is_past(interval.end):
        raise Unavailable(
            f"the source's clock is not past the run's interval {interval}",
            op="capture",
            hint="It is tried again; the task changes_available waits for it without a slot.",
        )
    return ledger.freeze_run(run_id, _reached(until, source.offset()), interval)


def gap_ahead(log: LogReader, session: PipelineSession, bounds: RunBounds) -> Gap | None:
    """The gap between the applied transactions and the interval of a run that has one. What commits with an earlier
    time, but behind the frozen ends of the intervals before, is no run's but this one's.
    """
    if bounds.from_time is None:
        return None
    applied = low_watermark(session.target.positions())
    covered = session.ledger.covered_time(applied)
    if covered is not None and covered >= bounds.from_time:
        return None
    return gap_before(log, applied, bounds.from_time)


def refuse_gap(log: LogReader, session: PipelineSession, bounds: RunBounds, *, generation: int) -> None:
    """Refuse a run whose interval begins behind transactions that nobody has applied. Errors: `GapAhead`."""
    gap = gap_ahead(log, session, bounds)
    if gap is None or bounds.from_time is None:
        return
    raise GapAhead(
        f"the run's interval begins at {moment(bounds.from_time)}, and what was committed from {moment(gap.since)} on "
        f"(seqno {gap.first_seqno}) is not applied",
        since=gap.since,
        until=gap.until,
        last_seqno=gap.last_seqno,
        generation=generation,
    )


def settle(log: LogReader, ledger: Ledger, bounds: RunBounds) -> RunBounds:
    """Fix the seqno at which a run ends, once the log is captured far enough to know it."""
    if bounds.until_seqno is not None:
        return bounds
    seqno = last_seqno_of_run(log, bounds.until_offset, bounds.until_time)
    return bounds if seqno is None else ledger.settle_run(bounds.run_id, seqno)


def _as_asked(frozen: RunBounds, until: Until | None) -> RunBounds:
    """With `ddl=skip`, a run that went on to its former end would pass over DDL that nobody has looked at."""
    if until is not None and until.offset != frozen.until_offset:
        raise ConfigurationError(
            f"parameter until: this run's end is frozen since it first opened, and is not {until.text}",
            hint=f"Trigger another run with until={until.text}, and with the ddl that belongs to it. Then set both "
            "back, and clear this run.",
        )
    return frozen


def _reached(until: Until | None, current: Offset) -> Offset:
    if until is None:
        return current
    if until.offset > current:
        raise ConfigurationError(
            f"parameter until: the source has not come to {until.text} yet",
            hint="Leave it empty for everything that is committed when the run first opens.",
        )
    return until.offset

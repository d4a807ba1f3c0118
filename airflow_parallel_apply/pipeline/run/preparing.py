"""The first steps of a run: check both sides, make what is missing, freeze the bound, capture the first part."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.capture.values import CaptureStep, IntoLog, Prepared
from airflow_parallel_apply.pipeline.check.beginning import beginning_findings
from airflow_parallel_apply.pipeline.check.capabilities import findings_at
from airflow_parallel_apply.pipeline.check.expected import expected_at_target
from airflow_parallel_apply.pipeline.check.history import require_history
from airflow_parallel_apply.pipeline.check.loop import meeting_findings
from airflow_parallel_apply.pipeline.check.open import inheritance_findings
from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig, QueueEndpoint, Start
from airflow_parallel_apply.pipeline.copy.open import (
    copy_findings,
    goes_into_log,
    open_first_copy,
    read_progress,
    told_what_leads_on,
)
from airflow_parallel_apply.pipeline.copy.protocol import NO_GENERATION, Copying, FirstCopy
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LeaseBusy
from airflow_parallel_apply.pipeline.ledger.protocol import RoutingChange
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.directory import RESTORE
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.log.readers import register_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.finding import refuse
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.partition.open import check_routing, routing_of
from airflow_parallel_apply.pipeline.rare_collection import rare_collection
from airflow_parallel_apply.pipeline.run.bounds import asked_until, for_source, freeze, settle
from airflow_parallel_apply.pipeline.run.checking import require_place_for_log, tell
from airflow_parallel_apply.pipeline.run.sessions import open_session, reader_entry
from airflow_parallel_apply.pipeline.run.values import CaptureReport
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.pipeline.source.protocol import PreparedElsewhere, SourceChanged
from airflow_parallel_apply.pipeline.target.expectation import Expectation, require_applicable
from airflow_parallel_apply.queue.open import prepare_queue

_logger = logging.getLogger(__name__)

FIRST_CAPTURE_CHANGES: Final = 200_000
"""Changes that the capture task itself brings; the lanes capture the rest while they apply."""

_TRIES: Final = 3
"""Attempts of a first run whose tables change while it begins."""


@rare_collection()
def prepare(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    queue: QueueEndpoint | None = None,
    copying: Copying | None = None,
) -> Prepared:
    """Check both sides, then create what the pipeline needs on its first run; says what it created.

    `queue`: where its queue is (None: in the target's database); one that does not answer stops it here.
    `copying`: who copies, if this is a first run with start=copy. A copy that was cut off begins anew here.

    Errors: `LeaseBusy` while another run copies. Nothing is created before the tables of both sides are checked. The
    stream comes last: it makes the source keep what it commits, and all else that a failed start leaves is harmless.
    """
    config = config.at_directory()
    with _both(config, source, target) as ends:
        return _prepare(config, ends, queue=queue, copying=copying)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Both ends of a pipeline: where they are, and one session with each for all that a task does."""

    source: Endpoint
    target: Endpoint
    reading: Capture
    writing: PipelineSession


@contextmanager
def _both(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    has_end: Callable[[PipelineSession], bool] = lambda _: False,
) -> Iterator[_Ends]:
    """`has_end`: whether the run's end is fixed already, see `for_source`."""
    with (
        told_what_leads_on(config, source, target),
        closing(open_session(target, config)) as writing,
        closing(open_capture(source, for_source(config) if has_end(writing) else config)) as reading,
    ):
        yield _Ends(source=source, target=target, reading=reading, writing=writing)


def _prepare(config: PipelineConfig, ends: _Ends, *, queue: QueueEndpoint | None, copying: Copying | None) -> Prepared:
    tries = 0
    while True:
        try:
            return _try_to_prepare(config, ends, queue=queue, copying=copying)
        except SourceChanged as changed:
            tries += 1
            if tries == _TRIES:
                raise
            _logger.warning("prepare: beginning anew: %s", changed)


def _try_to_prepare(
    config: PipelineConfig, ends: _Ends, *, queue: QueueEndpoint | None, copying: Copying | None
) -> Prepared:
    source, target, reading, writing = ends.source, ends.target, ends.reading, ends.writing
    with ExitStack() as stack:
        state = writing.state()
        refuse(
            (*meeting_findings(config.pipeline, source, target, reading.source.names()), *writing.findings()),
            place=f"the target {target.place}",
            op="prepare",
            pipeline=config.pipeline,
        )
        # Behind its first run a target that follows DDL need not look like the source.
        is_compared = state is None or config.ddl is DdlPolicy.REFUSE
        relations = at_source = reading.source.relations() if is_compared else ()
        copy = None
        into_log = _into_log(config, source, target, copying) if state is None else None
        if state is None and config.start is Start.COPY and into_log is None:
            copying_now = stack.enter_context(_initial_copy(config, source, target, relations, copying))
            # Whoever copied until now may have come to the end just before.
            state = writing.state()
            copy = copying_now if state is None else None
        first = state is None
        if state is not None:
            _require_log(config, state.log_id)
            require_history(config.log_url, writing, place=target.place)
        if first:
            found = beginning_findings(
                config, writing.target, reading.has_changes, copies_into_log=into_log is not None
            )
            refuse(found, place="the log", op="prepare", pipeline=config.pipeline)
            # Tables that a copy made inherit at its end; one that was cut off had been checked before.
            if read_progress(target, config.pipeline) is None:
                unlike = inheritance_findings(config, source, target, relations)
                tell(refuse(unlike, place=f"the target {target.place}", op="prepare", pipeline=config.pipeline))
        require_place_for_log(config)
        if copy is not None:
            warnings = copy.rehearse()
        else:
            refuse(
                copy_findings(config, source, target, relations) if into_log is not None else (),
                place="the target",
                op="prepare",
                pipeline=config.pipeline,
            )
            require_empty = first and config.start is not Start.EQUAL
            relations = relations if first else expected_at_target(config, relations)
            looked_for = Expectation(
                channels=config.channels, tables=tuple(relations), are_empty=require_empty, are_new=first
            )
            warnings = require_applicable(
                findings_at(writing.target, config, looked_for), op="prepare", pipeline=config.pipeline
            )
        routing = routing_of(config, writing.target.colocation(config.tables))
        check_routing(routing, relations)
        made_elsewhere = () if queue is None else tuple(f"queue: {line}" for line in prepare_queue(queue.dsn))
        created = (*writing.migrate(), *(prepare_queue(target.steering.url) if queue is None else ()))
        try:
            prepared = reading.prepare(
                copy.run if copy is not None else into_log, checked=at_source, is_known=state is not None
            )
        except PreparedElsewhere as error:
            if not first:
                raise
            # A copy may take hours: whoever waits for it leaves the worker to others.
            raise LeaseBusy(error.message, hint=error.hint, generation=NO_GENERATION) from error
        if first and copy is None and (config.start is not Start.EQUAL or _has_transactions(config)):
            # Another first run, which this one waited for, may have begun the log, and filled it. With start=equal
            # a log without transactions may be joined, whatever was written since.
            refuse(
                beginning_findings(config, writing.target, reading.has_changes, copies_into_log=into_log is not None),
                place="the log",
                op="prepare",
                pipeline=config.pipeline,
            )
        if copy is not None:
            copy.require_finished(prepared.log_id)
            created += tuple(copy.created)
        # Before there is a position that a purge must not pass.
        register_reader(config.log_url, reader_entry(writing.target, target, config.pipeline))
        # Another run may own the pipeline: then it is registered, and routed as its owner likes.
        with suppress(LeaseBusy):
            routing = routing_of(config, writing.target.colocation(config.tables))
            writing.route(RoutingChange(generation=None, log_id=prepared.log_id, routing=routing, is_known=not first))
            if first:
                # Until a run opens, somebody may rename what has the rows.
                writing.target.note_tables()
        if copy is not None:
            copy.register()
        return Prepared(
            log_id=prepared.log_id,
            stream=prepared.stream,
            selection=prepared.selection,
            tables=prepared.tables,
            created=(*prepared.created, *(f"target: {line}" for line in created), *made_elsewhere),
            warnings=(*prepared.warnings, *warnings),
        )


@rare_collection()
def capture(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    queue: QueueEndpoint | None = None,
    run_id: str,
    until: str,
    interval: Interval | None = None,
    cancelled: Callable[[], bool],
    report: Callable[[CaptureStep], None],
    copying: Copying | None = None,
) -> CaptureReport:
    """Prepare, freeze the run's bound, and bring the first part of the backlog into the log; all of it where the lanes
    do not see the log's directory.
    """
    began = monotonic()
    brings_all, config = config.is_served, config.at_directory()
    connector = source_connector(source)
    # Before anything is made.
    asked = asked_until(source, until)

    def has_end(session: PipelineSession) -> bool:
        return asked is not None or _is_frozen(config, session, run_id)

    with ExitStack() as stack:
        ends = stack.enter_context(_both(config, source, target, has_end=has_end))
        reading, writing = ends.reading, ends.writing
        prepared = _prepare(config, ends, queue=queue, copying=copying)
        tell(prepared.warnings)
        log = open_reader(config.log_url)
        bounds = settle(
            log, writing.ledger, freeze(reading.source, writing.ledger, run_id=run_id, until=asked, interval=interval)
        )
        if config.ddl is DdlPolicy.SKIP:
            reading = stack.enter_context(closing(open_capture(source, for_source(config))))
        rows = 0
        owner = writing.state()
        # Another run's lanes capture for themselves, and would only be in each other's way with us.
        goes_on = bounds.until_seqno is None and (brings_all or owner is None or not owner.is_owned)
        while goes_on:
            steps = retrying(
                lambda: list(
                    reading.capture(bounds.until_offset, max_changes=FIRST_CAPTURE_CHANGES, cancelled=cancelled)
                ),
                on_retry=_tell_unless(cancelled),
            )
            for step in steps:
                report(step)
                rows += step.row_count
            goes_on = brings_all and not cancelled() and not any(step.done for step in steps)
        bounds = settle(log, writing.ledger, bounds)
        state = log.state()
        return CaptureReport(
            prepared=prepared,
            bounds=bounds,
            until=connector.show_offset(bounds.until_offset),
            captured=connector.show_offset(state.captured_offset),
            last_seqno=state.last_seqno,
            rows=rows,
            done=bounds.until_seqno is not None,
            seconds=monotonic() - began,
        )


def _is_frozen(config: PipelineConfig, session: PipelineSession, run_id: str) -> bool:
    """True if a former try has fixed the end of a run with `ddl=skip`."""
    if config.ddl is not DdlPolicy.SKIP or session.state() is None:
        return False
    # Those of an earlier release tell less.
    session.migrate()
    return session.ledger.run_bounds(run_id) is not None


def _has_transactions(config: PipelineConfig) -> bool:
    return open_reader(config.log_url).state().last_seqno != NO_SEQNO


def _into_log(config: PipelineConfig, source: Endpoint, target: Endpoint, copying: Copying | None) -> IntoLog | None:
    """The copy of a first run whose rows go into the log; None where another way is gone."""
    if config.start is not Start.COPY or not goes_into_log(source, target):
        return None
    if copying is None:
        return IntoLog(report=lambda progress: None, cancelled=lambda: False)  # noqa: ARG005
    return IntoLog(report=copying.report, cancelled=copying.cancelled)


def _initial_copy(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    copying: Copying | None,
) -> FirstCopy:
    if copying is None:
        raise ConfigurationError(
            "start=copy needs Spark, and this step was given none",
            op="prepare",
            pipeline=config.pipeline,
            hint="Run the task capture, or parallel-apply prepare.",
        )
    return open_first_copy(config, source, target, relations, copying)


def _tell_unless(cancelled: Callable[[], bool]) -> Callable[[BaseException], None]:
    def tell(error: BaseException) -> None:
        _logger.warning("capture: trying again: %s", error)
        if cancelled():
            raise error

    return tell


def _require_log(config: PipelineConfig, log_id: str) -> None:
    """A registered pipeline goes on with its own log. Errors: `ConfigurationError`, before a stream is made."""
    found = open_reader(config.log_url).identity.log_id if log_exists(config.log_url) else None
    if found != log_id:
        raise ConfigurationError(
            f"the target has applied log {log_id} so far, "
            + (f"there is none at {config.log_url}" if found is None else f"{config.log_url} is log {found}"),
            op="prepare",
            pipeline=config.pipeline,
            hint=f"Is this the pipeline's own log_url? If its log is lost: {RESTORE}"
            if found is None
            else "Use the pipeline's own log_url, or another pipeline name for another log.",
        )

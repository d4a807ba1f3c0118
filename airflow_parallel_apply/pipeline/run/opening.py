"""Opening a run: the lease, recovery from positions and plan, the queue's first tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from airflow_parallel_apply.pipeline.apply.lease_renewer import LeaseRenewer
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.check.history import require_history
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.copy.open import told_what_leads_on
from airflow_parallel_apply.pipeline.errors import LeaseBusy, LogError, ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, PipelineState, RoutingChange, RunBounds
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.position import all_equal, low_watermark
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.pipeline.rare_collection import rare_collection
from airflow_parallel_apply.pipeline.run.bounds import (
    asked_until,
    for_source,
    freeze,
    gap_ahead,
    refuse_gap,
    settle,
    stopped_at,
)
from airflow_parallel_apply.pipeline.run.checking import check_run
from airflow_parallel_apply.pipeline.run.pipeline_queue import PipelineQueue, is_in_target, open_pipeline_queue
from airflow_parallel_apply.pipeline.run.preparing import FIRST_CAPTURE_CHANGES
from airflow_parallel_apply.pipeline.run.seeding import feed_limits, seeded_state
from airflow_parallel_apply.pipeline.run.sessions import HANDOVER_LEASE, OWNER_PATIENCE, claimant_of, open_session
from airflow_parallel_apply.pipeline.run.shared_session import keep_session
from airflow_parallel_apply.pipeline.run.values import OpenedRun
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.pipeline.store.feed import feed_store
from airflow_parallel_apply.queue.protocol import Queue

_logger = logging.getLogger(__name__)


@rare_collection()
def open_run(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    queue: QueueEndpoint | None = None,
    owner: str,
    run_id: str,
    until: str = "",
    interval: Interval | None = None,
    catch_up: bool = False,
    session_id: str = "",
    goes_on: Callable[[str], bool] = lambda _: False,
) -> OpenedRun:
    """Take the lease, recover from positions and plan, seed the queue.

    `queue`: None: in the target's database. `session_id`: of a Spark session that the run's lanes shall share; empty:
    the first lane makes one. `catch_up`: what lies before the interval is this run's to apply, too. `goes_on`: of
    another owner whose lease is over, whether its run is known to go on: its lanes may wait for slots; it is waited
    for, for `OWNER_PATIENCE` behind the lease's end. Errors: `LeaseBusy` while another run is alive, `GapAhead`.
    """
    asked = asked_until(source, until)
    with (
        closing(open_session(target, config)) as writing,
        closing(open_pipeline_queue(writing.target, target, queue, config.pipeline)) as tasks,
    ):
        writing.require_begun(config.pipeline)
        log = open_reader(config.log_url)
        # `capture` may have been the release before's.
        writing.migrate()
        require_history(config.log_url, writing, place=target.place)
        if not catch_up:
            _refuse_known_gap(log, writing, run_id)
        lease = max(config.lease, HANDOVER_LEASE)
        former = writing.state()
        if former is not None:
            wait_for_former(former, owner, goes_on)
        try:
            taken = writing.acquire(
                LeaseRequest(
                    log_id=log.identity.log_id,
                    owner=owner,
                    lease=lease,
                    queue=tasks.place,
                    above=tasks.highest_generation(),
                    is_known=True,
                )
            )
        except LeaseBusy as busy:
            busy.reach_seqno = _goes_first(log, writing, run_id)
            raise
        try:
            with (
                told_what_leads_on(config, source, target),
                closing(open_capture(source, for_source(config))) as reading,
                _kept_lease(tasks.queue, target, config, taken.generation, lease),
            ):
                # What `capture` froze stands, also where it alone was told an `until`.
                bounds = None if asked else writing.ledger.run_bounds(run_id)
                bounds = bounds or freeze(reading.source, writing.ledger, run_id=run_id, until=asked, interval=interval)
                if not catch_up:
                    _bring_next(log, writing, reading, bounds)
                unbegun = check_run(config, reading, writing.target, source, target)
                opened = _seed(
                    config,
                    log,
                    writing,
                    tasks,
                    taken.generation,
                    bounds,
                    unbegun,
                    catch_up=catch_up,
                    session_id=session_id,
                )
                shown = source_connector(source).show_offset(bounds.until_offset)
                opened = replace(opened, owner=owner, until_offset=shown, is_end_asked=asked is not None)
                if former is not None and is_in_target(former) and tasks.place:
                    with closing(open_pipeline_queue(writing.target, target, None, config.pipeline)) as left:
                        left.sweep(below=taken.generation)
                return opened
        except BaseException:
            # Nothing was begun: the next run need not wait for a lease to end.
            with suppress(ParallelApplyError):
                stop_seqno = stopped_at(writing.target.positions())
                writing.ledger.release(taken.generation, clean_stop_seqno=stop_seqno)
            raise


def wait_for_former(former: PipelineState, owner: str, goes_on: Callable[[str], bool]) -> None:
    """Errors: `LeaseBusy` while an owner whose lease is over still counts, since its run is known to go on."""
    if former.owner is None or former.owner == owner or former.lapsed_for is None or former.lease_until is None:
        return
    # By the ledger's clock, as the lease: this host's may be another hour's.
    if former.lapsed_for < OWNER_PATIENCE and goes_on(former.owner):
        raise LeaseBusy(
            f"run {former.owner} owns the pipeline, and goes on, though nobody has been at work since "
            f"{former.lease_until:%H:%M:%S} UTC: its tasks may wait for slots",
            hint="Wait for it, or end that run.",
            generation=former.generation,
            is_lapsed=True,
        )


@contextmanager
def _kept_lease(
    queue: Queue, target: Endpoint, config: PipelineConfig, generation: int, lease: timedelta
) -> Iterator[None]:
    """Planning a long backlog takes longer than a lease. Whoever took the lease meanwhile has another generation, under
    which nothing that is done here counts.
    """

    def tell(what: str) -> None:
        _logger.warning("the %s of generation %s was lost to another run", what, generation)

    with (
        closing(open_session(target, config)) as renewing,
        LeaseRenewer(
            queue,
            claimant=claimant_of("open"),
            lease=lease,
            renew_lease=lambda: renewing.ledger.renew_lease(generation, lease),
            on_lost=tell,
        ).renewing(),
    ):
        yield


def _refuse_known_gap(log: LogReader, session: PipelineSession, run_id: str) -> None:
    """Before the lease is taken, which would raise the generation and keep those out who close the gap. While somebody
    owns it, that is what the run waits for.
    """
    state, bounds = session.ledger.state(), session.ledger.run_bounds(run_id)
    if bounds is not None and state is not None and state.owner is None:
        refuse_gap(log, session, bounds, generation=state.generation)


def _goes_first(log: LogReader, session: PipelineSession, run_id: str) -> int | None:
    """The seqno up to which others have to apply before a run that waits for the lease. Of many that wait, only the
    next one has to look.
    """
    bounds = session.ledger.run_bounds(run_id)
    gap = None if bounds is None else gap_ahead(log, session, bounds)
    return None if gap is None else gap.last_seqno


def _bring_next(log: LogReader, session: PipelineSession, capture: Capture, bounds: RunBounds) -> None:
    """Capture the next transaction, which tells whether there is a gap, where an owner kept `capture` from doing so."""
    if bounds.from_time is None or bounds.until_seqno is not None or log.root is None:
        return
    state = log.state()
    if state.last_seqno <= low_watermark(session.target.positions()) and state.captured_offset < bounds.until_offset:
        for _ in capture.capture(bounds.until_offset, max_changes=FIRST_CAPTURE_CHANGES, cancelled=lambda: False):
            continue


def _seed(
    config: PipelineConfig,
    log: LogReader,
    session: PipelineSession,
    tasks: PipelineQueue,
    generation: int,
    bounds: RunBounds,
    unbegun: Sequence[Relation],
    *,
    catch_up: bool,
    session_id: str,
) -> OpenedRun:
    """Under the lease: route, plan, and put into the queue what positions and plan say is left."""
    routing = routing_of(config, session.target.colocation(config.tables))
    session.route(RoutingChange(generation=generation, log_id=log.identity.log_id, routing=routing, is_known=True))
    session.target.note_tables(unbegun)
    captured = log.state().last_seqno
    bounds = settle(log, session.ledger, bounds)
    if not catch_up:
        refuse_gap(log, session, bounds, generation=generation)
    # Who planned may not have known of this run, nor of where the channels are.
    session.ledger.cut_plan(bounds.until_seqno, session.target.positions(), generation=generation)
    positions = session.target.positions()
    log.state().require_kept(low_watermark(positions))
    until = bounds.until_seqno
    if until is None and log.root is None:
        raise LogError(
            f"the log is captured up to seqno {captured}, which is not all of this run, and its directory is not here",
            op="open",
            pipeline=config.pipeline,
            hint="Clear the task capture: with a router's log_url it alone brings changes into the log.",
        )
    extend_plan(log, session, config, generation=generation, last_seqno=captured if until is None else None)
    feed_store(config, log, session)
    state = seeded_state(session, config, until)
    # A later run that failed may have left the channels apart, beyond this run's bound.
    nothing_to_do = until is not None and all_equal(positions) and positions[0].seqno >= until
    if not nothing_to_do:
        coordinator = Coordinator(
            tasks.queue,
            session,
            tasks.names(generation),
            claimant=claimant_of("open"),
            limits=feed_limits(config),
        )
        tasks.sweep(below=generation)
        coordinator.seed(state, capture=until is None)
        if session_id:
            keep_session(tasks.queue, tasks.names(generation), session_id)
        state = coordinator.feed()
    return OpenedRun(
        pipeline=config.pipeline,
        run_id=bounds.run_id,
        generation=generation,
        log_id=log.identity.log_id,
        until_time=None if bounds.until_time is None else bounds.until_time.isoformat(),
        until_seqno=until,
        nothing_to_do=nothing_to_do,
        lanes=0 if nothing_to_do else config.lane_count,
        coordinator_state=state.to_json(),
        ddl=config.ddl.value,
    )

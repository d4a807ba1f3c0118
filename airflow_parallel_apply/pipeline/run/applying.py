"""One lane of a run, with everything that it opens and the threads beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from airflow_parallel_apply.pipeline.apply.capture_turn import CAPTURE_ROLE, CaptureTurns
from airflow_parallel_apply.pipeline.apply.lane import Lane
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.apply.lease_renewer import LeaseRenewer
from airflow_parallel_apply.pipeline.apply.ownership import generation_over
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.apply.target_watch import TargetWatch
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import Phase
from airflow_parallel_apply.pipeline.copy.open import told_what_leads_on
from airflow_parallel_apply.pipeline.errors import LogError, ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.protocol import RunBounds
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.run.bounds import for_source
from airflow_parallel_apply.pipeline.run.pipeline_queue import PipelineQueue, open_pipeline_queue
from airflow_parallel_apply.pipeline.run.seeding import feed_limits, replanner, reviver
from airflow_parallel_apply.pipeline.run.sessions import (
    HANDOVER_LEASE,
    bring_up_to_date,
    claimant_of,
    open_session,
    opened_bounds,
    require_opened,
)
from airflow_parallel_apply.pipeline.run.values import OpenedRun
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.pipeline.stream.address import place_of_log
from airflow_parallel_apply.pipeline.target.open import target_connector

_logger = logging.getLogger(__name__)


def apply(
    opened: OpenedRun,
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    queue: QueueEndpoint | None = None,
    lane: int,
    stage: Stage,
    signals: LaneSignals,
    report: LaneReport | None = None,
) -> LaneReport:
    """Run one lane until every channel is stopped. `report`: that of the lane's former tries, to go on with.

    Errors: `OwnershipLost` when the generation is over; what `stage` raises that no retry helps against.
    """
    log = _shared_log(config, opened)
    report = report or LaneReport(lane=lane, generation=opened.generation)
    claimant = claimant_of(f"lane {lane}")
    with ExitStack() as stack:
        # A database that restarts while a lane begins is waited for, as it is by one that is under way.
        ground = retrying(partial(_take_ground, opened, config, target, queue), on_retry=_tell)
        stack.push(ground.held)
        sessions, tasks, routing, config = ground.sessions, ground.tasks, ground.routing, ground.config
        lost: list[str] = []

        def on_lost(what: str) -> None:
            lost.append(what)
            if what != CAPTURE_ROLE:
                stage.cancel()

        renewer = stack.enter_context(
            LeaseRenewer(
                tasks.queue,
                claimant=claimant,
                lease=config.lease,
                renew_lease=lambda: sessions[2].ledger.renew_lease(opened.generation, config.lease),
                on_lost=on_lost,
            ).renewing()
        )

        def coordinator(session: PipelineSession) -> Coordinator:
            return _coordinator(opened, config, session, tasks, log, claimant=claimant)

        turns = CaptureTurns(
            config=config,
            bounds=ground.bounds,
            claimant=claimant,
            capture=lambda: open_capture(source, for_source(config)),
            told=partial(told_what_leads_on, config, source, target),
            session=sessions[1],
            require_pipeline=partial(require_opened, sessions[1], opened),
            log=open_reader(config.log_url),
            coordinator=coordinator(sessions[1]),
            renewer=renewer,
            report=report,
        )

        def background_failure() -> ParallelApplyError | None:
            if "lease" in lost:
                return generation_over(config.pipeline, opened.generation)
            return turns.failure()

        if opened.until_seqno is None:
            turns.start()
        stack.callback(turns.stop)
        watch = TargetWatch(sessions[0].target, sessions[3].target, cancelled=signals.cancelled)
        context = LaneContext(
            config=config,
            routing=routing,
            claimant=claimant,
            coordinator=coordinator(sessions[0]),
            session=sessions[0],
            require_pipeline=partial(require_opened, sessions[0], opened),
            log=log,
            stage=stage,
            renewer=renewer,
            watch=stack.enter_context(watch.watching()),
            signals=signals,
            report=report,
            # Only a message asks for it, and a source is much to import.
            show_offset=lambda offset: source_connector(source).show_offset(offset),
            asked_end=ground.bounds.until_offset if opened.is_end_asked else None,
            is_feed=target_connector(target).takes_changes(target),
        )
        Lane(context, lane=lane, capture=turns.start, background_failure=background_failure).run()
        # Nobody renews until close comes, which may wait for a slot.
        with suppress(ParallelApplyError):
            sessions[0].ledger.renew_lease(opened.generation, max(config.lease, HANDOVER_LEASE))
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """The ground of a lane: sessions, queue, and what the ledger says of its run. `held` closes them."""

    held: ExitStack
    sessions: tuple[PipelineSession, ...]
    tasks: PipelineQueue
    routing: Routing
    config: PipelineConfig
    bounds: RunBounds


def _take_ground(opened: OpenedRun, config: PipelineConfig, target: Endpoint, queue: QueueEndpoint | None) -> _Ground:
    """Everything, or nothing is held. Errors: those of `apply`."""
    with ExitStack() as stack:
        sessions = tuple(stack.enter_context(closing(open_session(target, config))) for _ in range(4))
        tasks = stack.enter_context(closing(open_pipeline_queue(sessions[0].target, target, queue, config.pipeline)))
        bring_up_to_date(sessions[0])
        state = require_opened(sessions[0], opened)
        if state.generation == opened.generation:
            tasks.require(state)
        routing, config = _as_opened(opened, config, sessions[0])
        return _Ground(
            bounds=opened_bounds(sessions[0], opened),
            sessions=sessions,
            tasks=tasks,
            routing=routing,
            config=config,
            held=stack.pop_all(),
        )


def _tell(error: BaseException) -> None:
    _logger.warning("a lane begins, trying again: %s", error)


@contextmanager
def waiting_lane(
    opened: OpenedRun, config: PipelineConfig, target: Endpoint, *, queue: QueueEndpoint | None = None
) -> Iterator[Callable[[], bool]]:
    """A lane that has to wait before it can claim anything. Call what this yields every second or so: it keeps the
    run's generation, and says whether all channels are stopped meanwhile. Its errors are those of `apply`.
    """
    with (
        closing(open_session(target, config)) as session,
        closing(open_pipeline_queue(session.target, target, queue, config.pipeline)) as tasks,
    ):
        log, claimant = _shared_log(config, opened), claimant_of("waiting lane")
        _, config = _as_opened(opened, config, session)
        coordinator = _coordinator(opened, config, session, tasks, log, claimant=claimant)

        def is_drained() -> bool:
            session.ledger.renew_lease(opened.generation, config.lease)
            return coordinator.state().phase is Phase.DRAINED

        yield is_drained


def _coordinator(
    opened: OpenedRun,
    config: PipelineConfig,
    session: PipelineSession,
    tasks: PipelineQueue,
    log: LogReader,
    *,
    claimant: str,
) -> Coordinator:
    replan = replanner(opened, session, config, log)
    return Coordinator(
        tasks.queue,
        session,
        tasks.names(opened.generation),
        claimant=claimant,
        limits=feed_limits(config),
        revive=reviver(opened, session, config, tasks, replan),
        replan=replan,
    )


def _as_opened(opened: OpenedRun, config: PipelineConfig, session: PipelineSession) -> tuple[Routing, PipelineConfig]:
    """The routing that the run was opened with, and the configuration with as many channels, and with the run's `ddl`:
    a DAG that is edited while a run is under way gives the lanes which start then others.
    """
    routing = session.ledger.routing()
    return routing, replace(config, channels=routing.channels, ddl=DdlPolicy(opened.ddl or config.ddl))


def _shared_log(config: PipelineConfig, opened: OpenedRun) -> LogReader:
    hint = "log_url must be one directory that every worker sees, such as a network file system, or a router's log."
    place = place_of_log(config.log_url)
    if not log_exists(config.log_url):
        raise LogError(f"there is no log at {place} on this worker", op="apply", hint=hint)
    log = open_reader(config.log_url)
    if log.identity.log_id != opened.log_id:
        raise LogError(f"the log at {place} on this worker is another one", op="apply", hint=hint)
    return log

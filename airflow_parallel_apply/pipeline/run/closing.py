"""The end of a run: the one judge of whether it was clean, and the stop that a person asks for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from airflow_parallel_apply.pipeline.apply.batch import new_token
from airflow_parallel_apply.pipeline.apply.ownership import generation_over
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint, StoreName
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, StopReason
from airflow_parallel_apply.pipeline.errors import FatalError, OwnershipLost, ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import Ledger, PipelineState
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.rare_collection import rare_collection
from airflow_parallel_apply.pipeline.run.bounds import stopped_at
from airflow_parallel_apply.pipeline.run.pipeline_queue import PipelineQueue, open_pipeline_queue
from airflow_parallel_apply.pipeline.run.sessions import (
    bring_up_to_date,
    claimant_of,
    open_session,
    opened_bounds,
    require_opened,
)
from airflow_parallel_apply.pipeline.run.values import ClosedRun, OpenedRun
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from airflow_parallel_apply.pipeline.store.open import store_status
from airflow_parallel_apply.pipeline.store.protocol import StoreStatus
from airflow_parallel_apply.pipeline.target.steps import Capability
from airflow_parallel_apply.queue.model import QueueUnavailable

_logger = logging.getLogger(__name__)


@rare_collection()
def close_run(
    opened: OpenedRun | None,
    config: PipelineConfig,
    target: Endpoint,
    lane_reports: Sequence[dict[str, Any]],
    *,
    queue: QueueEndpoint | None = None,
) -> ClosedRun:
    """The only judge: a clean shutdown by the target's positions, or the first error. Releases the lease either way."""
    if opened is None:
        raise FatalError(
            "open has left nothing of the run: it was marked as success by hand, or its XComs were removed",
            op="close",
            pipeline=config.pipeline,
            hint="Clear open with everything downstream of it.",
        )
    with (
        closing(open_session(target, config)) as writing,
        closing(open_pipeline_queue(writing.target, target, queue, config.pipeline)) as tasks,
    ):
        bring_up_to_date(writing)
        owned = require_opened(writing, opened)
        if owned.generation != opened.generation:
            raise generation_over(config.pipeline, opened.generation)
        opened_bounds(writing, opened)
        tasks.require(owned)
        positions = _positions(writing, owned)
        _note_tables(writing)
        rows = sum(int(report.get("rows", 0)) for report in lane_reports)
        rested = _rested_at(opened, owned, writing.ledger)
        if rested is None:
            stop_seqno, early = _judge(opened, config, writing, tasks)
            writing.ledger.release(opened.generation, clean_stop_seqno=stop_seqno)
        else:
            stop_seqno = low_watermark(positions)
            is_there = stop_seqno >= rested and all_equal(positions)
            early = is_there and _is_early(stop_seqno, writing.ledger, opened)
            if early and not any(report.get("stop_asked") for report in lane_reports):
                # Another run's end: of one whose generation has the same number, since the target was set back.
                raise generation_over(config.pipeline, opened.generation)
            writing.ledger.release(opened.generation, clean_stop_seqno=stopped_at(positions))
            if not is_there:
                raise _lost_commits(config, rested, positions)
        _tidy(tasks, opened.generation)
        return ClosedRun(
            pipeline=config.pipeline,
            generation=opened.generation,
            stop_seqno=stop_seqno,
            channels=len(positions),
            rows=rows,
            stopped_early=early,
            store=_router_status(config, writing),
        )


def request_stop(config_pipeline: str, target: Endpoint, *, queue: QueueEndpoint | None = None) -> CoordinatorState:
    """Put stop markers behind what is fed, in the pipeline's present generation; idempotent. Errors: `FatalError` where
    no run is under way, `TargetError` where it has failed.
    """
    with (
        closing(open_pipeline(target, config_pipeline)) as writing,
        closing(open_pipeline_queue(writing.target, target, queue, config_pipeline)) as tasks,
    ):
        owned = writing.ledger.state()
        if owned is None:
            raise FatalError(
                "no such pipeline in this target",
                op="stop",
                pipeline=config_pipeline,
                hint="See parallel-apply status.",
            )
        if owned.owner is None:
            raise FatalError("no run is under way: there is nothing to stop", op="stop", pipeline=config_pipeline)
        tasks.require(owned)
        names = tasks.names(owned.generation)
        try:
            state = Coordinator(tasks.queue, writing, names, claimant=claimant_of("stop")).request_stop()
        except OwnershipLost as error:
            raise FatalError(
                f"the queue has no tasks of run {owned.owner}: it is opening, finds nothing to do, has just ended, or "
                "the queue has lost them",
                op="stop",
                pipeline=config_pipeline,
                hint="If the run goes on, run this again in a minute: its lanes make tasks that were lost anew.",
            ) from error
    if state.phase is Phase.FAILED:
        why = "" if state.failure is None else f": {state.failure.message}"
        raise TargetError(
            f"the run has failed, and ends red by itself when the other channels have come to the failure{why}",
            op="stop",
            pipeline=config_pipeline,
            hint="There is nothing to stop. Mend the failure; then clear open with everything downstream.",
        )
    return state


def _judge(
    opened: OpenedRun, config: PipelineConfig, session: PipelineSession, tasks: PipelineQueue
) -> tuple[int, bool]:
    """The stop's seqno where the shutdown is clean. Everything else is raised, after the lease is released."""
    names = tasks.names(opened.generation)
    coordinator = Coordinator(tasks.queue, session, names, claimant=claimant_of("close"))
    positions = session.target.positions()
    try:
        state = coordinator.state()
    except (OwnershipLost, QueueUnavailable) as error:
        # A queue that was lost, or went away, since the last lane ended changes nothing of what the target says.
        if all_equal(positions) and not _is_early(positions[0].seqno, session.ledger, opened):
            return positions[0].seqno, False
        if isinstance(error, OwnershipLost):
            _release_red(session, opened.generation)
        raise
    is_stopped = state.phase is Phase.DRAINED and all(position.seqno == state.stop_seqno for position in positions)
    is_early = is_stopped and _is_early(positions[0].seqno, session.ledger, opened)
    if is_stopped and (not is_early or state.stop_reason is StopReason.ASKED):
        return positions[0].seqno, is_early
    _release_red(session, opened.generation)
    if is_early:
        raise TargetError(
            f"all channels were stopped at seqno {state.stop_seqno}, which is not known as this run's end, and nobody "
            "asked for it: the target or its ledger was set back meanwhile",
            op="close",
            pipeline=config.pipeline,
            hint="Clear open with everything downstream: it goes on from there.",
        )
    if state.phase is Phase.DRAINED and state.stop_seqno is not None and low_watermark(positions) < state.stop_seqno:
        raise _lost_commits(config, state.stop_seqno, positions)
    if state.failure is not None:
        raise TargetError(f"{state.failure.message} Then clear open with everything downstream.")
    raise TargetError(
        f"the lanes ended before every channel was stopped (phase {state.phase}; {_committed(positions)})",
        op="close",
        pipeline=config.pipeline,
        hint="See the lanes' logs; then clear open with everything downstream. Nothing is lost or applied twice.",
    )


def _positions(session: PipelineSession, owned: PipelineState) -> tuple[Position, ...]:
    """Errors: those of `Target.positions`; nothing of the run is kept where some are gone."""
    try:
        return session.target.positions()
    except TargetError:
        if owned.owner is not None:
            _release_red(session, owned.generation)
        raise


def _rested_at(opened: OpenedRun, owned: PipelineState, ledger: Ledger) -> int | None:
    """The seqno that the channels had come to before this close: as an earlier one of this generation judged, whose
    tasks may be gone, or as `open` found, which left nothing to do. None where neither did.
    """
    if owned.clean_stop_seqno is not None or not opened.nothing_to_do:
        return owned.clean_stop_seqno
    bounds = ledger.run_bounds(opened.run_id)
    return None if bounds is None else bounds.until_seqno


def _committed(positions: Sequence[Position]) -> str:
    reached = ", ".join(f"{position.channel}: {position.seqno}" for position in positions)
    return f"committed by channel: {reached}"


def _lost_commits(config: PipelineConfig, stop_seqno: int, positions: Sequence[Position]) -> TargetError:
    """`stop_seqno`: where all channels were, or beyond which."""
    seqno = low_watermark(positions)
    if seqno >= stop_seqno:
        found = f"not all of its channels are at the same transaction ({_committed(positions)})"
    else:
        found = f"it is back at seqno {seqno}"
    return TargetError(
        f"the target has lost commits since its channels were stopped at seqno {stop_seqno}: {found}",
        op="close",
        pipeline=config.pipeline,
        hint="Clear open with everything downstream: it goes on from there.",
    )


def _note_tables(session: PipelineSession) -> None:
    """Those that came while the run was under way, before somebody renames them. The run is judged without it: the next
    one does it, too.
    """
    try:
        session.target.note_tables()
    except ParallelApplyError as error:
        _logger.warning("which tables the rows are in is noted by the next run: %s", error)


def _router_status(config: PipelineConfig, session: PipelineSession) -> StoreStatus | None:
    """The statistics of the store `memory`, whatever they say: the run is judged without them."""
    if chosen_store(config).store is not StoreName.MEMORY:
        return None
    try:
        return store_status(open_reader(config.log_url), config.pipeline, session.ledger.routing(), config.router)
    except ParallelApplyError as error:
        _logger.warning("what the router did for the run is not known: %s", error)
        return None


def _release_red(session: PipelineSession, generation: int) -> None:
    """Release the lease of a run that is red, and before that end what it may have prepared, which would hold its locks
    until the next run.
    """
    if Capability.PREPARE in session.target.capabilities:
        try:
            session.target.take(None, generation=generation, token=new_token())
            session.target.leave()
        except ParallelApplyError as error:
            _logger.warning("what is prepared waits for the next run, or parallel-apply recover: %s", error)
    session.ledger.release(generation, clean_stop_seqno=None)


def _tidy(tasks: PipelineQueue, generation: int) -> None:
    """Remove the run's tasks. The run is judged by now, so a queue that cannot be reached does not turn it red; the
    next run sweeps again.
    """
    try:
        tasks.sweep(below=generation + 1)
    except QueueUnavailable as error:
        _logger.warning("the run's tasks were not removed from the queue: %s", error)


def _is_early(seqno: int, ledger: Ledger, opened: OpenedRun) -> bool:
    """True if a stop came before the run's bound."""
    bounds = ledger.run_bounds(opened.run_id)
    return bounds is None or bounds.until_seqno is None or seqno < bounds.until_seqno

"""Filling a generation's queue from positions and plan: when a run opens, and when a lane finds it lost.

Safe beside lanes that still hold something of a lost queue: their commits count by generation and token (law 3), and
what is handed out twice lies at or below a position. Consistency and protocol are those that `open` told its lanes.
What only the queue knew is found out again: a unit that failed fails again, a conflict comes again. A stop that was
asked for by command has to be asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_parallel_apply.pipeline.apply.ownership import generation_over
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.grouping import GroupLimits
from airflow_parallel_apply.pipeline.coordinate.recovery import Replan
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.pipeline.run.pipeline_queue import PipelineQueue
from airflow_parallel_apply.pipeline.run.protocol import protocol_of
from airflow_parallel_apply.pipeline.run.sessions import opened_bounds, require_opened
from airflow_parallel_apply.pipeline.run.values import OpenedRun
from airflow_parallel_apply.pipeline.store.choice import chosen_store

_logger = logging.getLogger(__name__)


def seeded_state(session: PipelineSession, config: PipelineConfig, until_seqno: int | None) -> CoordinatorState:
    """The state with which a generation begins: everything above the low watermark is to be fed."""
    low = low_watermark(session.target.positions())
    return CoordinatorState(
        phase=Phase.RUNNING,
        channels=config.channels,
        fed_epoch=session.ledger.last_epoch_at(low),
        fed_seqno=low,
        until_seqno=until_seqno,
        consistency=config.consistency,
        protocol=protocol_of(config, session.target),
        store=str(chosen_store(config)),
    )


def _reseeded_state(opened: OpenedRun, session: PipelineSession, until_seqno: int | None) -> CoordinatorState:
    """The state with which `open` began the generation, brought to the positions: a DAG that was edited since has
    another consistency, and branches may be prepared.
    """
    low = low_watermark(session.target.positions())
    begun = CoordinatorState.from_json(opened.coordinator_state)
    return replace(begun, until_seqno=until_seqno).restarted(epoch=session.ledger.last_epoch_at(low), seqno=low)


def feed_limits(config: PipelineConfig) -> FeedLimits:
    """The limits on how far a run's channels are fed."""
    return FeedLimits(groups=GroupLimits(bytes_=config.unit_max_bytes))


def replanner(opened: OpenedRun, session: PipelineSession, config: PipelineConfig, log: LogReader) -> Replan:
    """Return what a coordinator does before it starts over on a target that has lost commits, among which the plan's
    end may be. Before the run's bound is known, the capture's next step plans.
    """

    def replan(until_seqno: int | None) -> None:
        if until_seqno is not None:
            session.ledger.settle_run(opened.run_id, until_seqno)
            extend_plan(log, session, config, generation=opened.generation)

    return replan


def reviver(
    opened: OpenedRun, session: PipelineSession, config: PipelineConfig, tasks: PipelineQueue, replan: Replan
) -> Callable[[Coordinator], None]:
    """Return what a coordinator does when the queue has no tasks of its generation: `OwnershipLost` if that is over;
    else the queue was lost, and is filled anew. `session`: the coordinator's own session.
    """

    def revive(coordinator: Coordinator) -> None:
        state = require_opened(session, opened)
        # `close` releases the lease before it sweeps.
        if state.generation != opened.generation or state.owner is None:
            raise generation_over(config.pipeline, opened.generation)
        tasks.require(state)
        _logger.warning(
            "the queue has lost the tasks of generation %d: it gets what positions and plan say is left",
            opened.generation,
        )
        bounds = opened_bounds(session, opened)
        replan(bounds.until_seqno)
        # What is there, because another lane was faster, stays.
        coordinator.seed(_reseeded_state(opened, session, bounds.until_seqno), capture=bounds.until_seqno is None)

    return revive

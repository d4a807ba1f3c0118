"""The end of a run: the one judge of whether it was clean, and the stop that a person asks for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from airflow_parallel_apply.pipeline.apply.lane import generation_over
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import Names
from airflow_parallel_apply.pipeline.errors import FatalError, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.position import low_watermark
from airflow_parallel_apply.pipeline.run.bounds import stopped_at
from airflow_parallel_apply.pipeline.run.sessions import claimant_of, open_session
from airflow_parallel_apply.pipeline.run.sweep import sweep
from airflow_parallel_apply.pipeline.run.values import ClosedRun, OpenedRun
from airflow_parallel_apply.pipeline.target.connect import open_target
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.connect import open_queue
from airflow_parallel_apply.queue.protocol import Queue


def close_run(
    opened: OpenedRun | None,
    config: PipelineConfig,
    target: Endpoint,
    lane_reports: Sequence[dict[str, Any]],
) -> ClosedRun:
    """The only judge: a clean shutdown by the target's positions, or the first error. Releases the fence either way."""
    if opened is None:
        raise FatalError("the run was not opened", op="close", pipeline=config.pipeline, hint="See the task open.")
    with closing(open_session(target, config)) as writing, closing(open_queue(target.dsn)) as queue:
        fence = writing.fence()
        if fence is None or fence.generation != opened.generation:
            raise generation_over(config.pipeline, opened.generation)
        positions = writing.positions()
        rows = sum(int(report.get("rows", 0)) for report in lane_reports)
        if opened.nothing_to_do:
            stop_seqno, early = low_watermark(positions), False
            writing.release(opened.generation, clean_stop_seqno=stopped_at(positions))
        elif fence.clean_stop_seqno is not None:
            # An earlier close of this generation came that far; its tasks may be gone.
            stop_seqno, early = fence.clean_stop_seqno, _is_early(fence.clean_stop_seqno, writing, opened)
        else:
            stop_seqno, early = _judge(opened, config, writing, queue)
            writing.release(opened.generation, clean_stop_seqno=stop_seqno)
        sweep(queue, config.pipeline, below=opened.generation + 1)
        return ClosedRun(
            pipeline=config.pipeline,
            generation=opened.generation,
            stop_seqno=stop_seqno,
            channels=len(positions),
            rows=rows,
            stopped_early=early,
        )


def request_stop(config_pipeline: str, target: Endpoint) -> CoordinatorState:
    """Put stop markers behind what is fed, in the pipeline's present generation; idempotent."""
    with closing(open_target(target, config_pipeline)) as writing, closing(open_queue(target.dsn)) as queue:
        fence = writing.fence() if writing.is_installed() else None
        if fence is None:
            raise FatalError(
                "no such pipeline in this target",
                op="stop",
                pipeline=config_pipeline,
                hint="See parallel-apply status.",
            )
        if fence.owner is None:
            raise FatalError("no run is under way: there is nothing to stop", op="stop", pipeline=config_pipeline)
        names = Names(pipeline=config_pipeline, generation=fence.generation)
        return Coordinator(queue, writing, names, claimant=claimant_of("stop")).request_stop()


def _judge(opened: OpenedRun, config: PipelineConfig, target: Target, queue: Queue) -> tuple[int, bool]:
    """The stop's seqno where the shutdown is clean. Everything else is raised, after the fence is released."""
    names = Names(pipeline=config.pipeline, generation=opened.generation)
    coordinator = Coordinator(queue, target, names, claimant=claimant_of("close"))
    try:
        state = coordinator.state()
    except OwnershipLost:
        target.release(opened.generation, clean_stop_seqno=None)
        raise
    positions = target.positions()
    if state.phase is Phase.DRAINED and all(position.seqno == state.stop_seqno for position in positions):
        return positions[0].seqno, _is_early(positions[0].seqno, target, opened)
    target.release(opened.generation, clean_stop_seqno=None)
    if state.failure is not None:
        raise TargetError(f"{state.failure.message} Then clear open with everything downstream.")
    reached = ", ".join(f"{position.channel}: {position.seqno}" for position in positions)
    raise TargetError(
        f"the lanes ended before every channel was stopped (phase {state.phase}; committed by channel: {reached})",
        op="close",
        pipeline=config.pipeline,
        hint="See the lanes' logs; then clear open with everything downstream. Nothing is lost or applied twice.",
    )


def _is_early(seqno: int, target: Target, opened: OpenedRun) -> bool:
    """Whether a stop came before the run's bound."""
    bounds = target.run_bounds(opened.run_id)
    return bounds is None or bounds.until_seqno is None or seqno < bounds.until_seqno

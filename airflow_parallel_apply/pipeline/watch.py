"""Looking at a pipeline without owning it: what waits for changes, or for the fence, asks here. Changes nothing."""

from __future__ import annotations

from contextlib import closing

import pendulum

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.position import low_watermark
from airflow_parallel_apply.pipeline.source.connect import open_source
from airflow_parallel_apply.pipeline.target.connect import open_target


def changes_available(config: PipelineConfig, source: Endpoint, target: Endpoint) -> str | None:
    """Why a run would have something to do, or None. Cheap: decodes at most one transaction at the source.

    Errors: those of source, log and target, such as a slot that is gone: better seen now than by the run.
    """
    with closing(open_target(target, config.pipeline)) as reading:
        fence = reading.fence() if reading.is_installed() else None
        if fence is None:
            return "it is the pipeline's first run"
        if fence.clean_stop_seqno is None:
            return "another run is under way, or ended without a clean shutdown"
        applied = low_watermark(reading.positions())
    captured = open_reader(config.log_url).state()
    if captured.last_seqno > applied:
        return f"captured transactions wait to be applied, from seqno {applied + 1}"
    with closing(open_source(source, config)) as looking:
        return "changes were committed at the source" if looking.has_changes(captured.captured_lsn) else None


def live_owner(pipeline: str, target: Endpoint) -> str | None:
    """Who owns the pipeline now, under a lease that lasts."""
    with closing(open_target(target, pipeline)) as reading:
        fence = reading.fence() if reading.is_installed() else None
    if fence is None or fence.lease_until is None or fence.lease_until <= pendulum.now("UTC"):
        return None
    return fence.owner

"""Where a run ends, and where its channels stand."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.plan.bounds import last_seqno_at
from airflow_parallel_apply.pipeline.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.target.protocol import RunBounds, Target


def stopped_at(positions: Sequence[Position]) -> int | None:
    """The seqno of a clean shutdown, where the channels stand at one."""
    return low_watermark(positions) if all_equal(positions) else None


def settle(log: LogReader, target: Target, bounds: RunBounds) -> RunBounds:
    """Fix the seqno at which a run ends, once the log reaches its LSN."""
    if bounds.until_seqno is not None:
        return bounds
    seqno = last_seqno_at(log, bounds.until_lsn)
    return bounds if seqno is None else target.settle_run(bounds.run_id, seqno)

"""Positions that are gone while tables may have rows: to begin anew would apply what is applied."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.errors import START_ANEW, TargetError


def positions_lost(place: str, table: str = "", *, pipeline: str | None) -> TargetError:
    """The error of a pipeline that had an owner, and whose positions are not, or not all, at their `place`. `table`:
    one that has rows, where the target's own registration does not say that there were positions.
    """
    rows = f", and {table} has rows" if table else ""
    return TargetError(
        f"the pipeline's positions in {place} are gone{rows}: nothing shows what was applied",
        op="route",
        pipeline=pipeline,
        hint=f"Restore positions and tables as of one moment, or start anew. {START_ANEW}",
    )


def of_another_log(place: str, applied: str, known: str, *, pipeline: str) -> TargetError:
    """The error of a target that was set back to before its pipeline was started anew, while the ledger was not."""
    return TargetError(
        f"the target {place} has applied log {applied}, and the pipeline's ledger names log {known}: one of the two is "
        "an older state of itself",
        op="route",
        pipeline=pipeline,
        hint=f"Restore both as of one moment, with the log of then, or start anew. {START_ANEW}",
    )

"""The errors of a run whose pipeline is no longer its own."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.ledger.protocol import PipelineState


def require_pipeline(
    state: PipelineState | None, *, pipeline: str, log_id: str, owner: str, generation: int
) -> PipelineState:
    """The state, if it is that of the pipeline that a run was opened for, and no other run owns it. Errors:
    `OwnershipLost`. `owner`: empty where an earlier release opened the run.

    The generation's number alone does not tell: it comes again if the pipeline was removed and begun anew, with another
    log, or if the target was set back.
    """
    if state is None or state.log_id != log_id:
        raise OwnershipLost(
            "the pipeline was removed"
            + (", or this is not its target" if state is None else ", and begun anew with another log"),
            op="apply",
            pipeline=pipeline,
            hint="Clear the task capture with everything downstream of it.",
        )
    if owner and state.owner not in (None, owner):
        raise generation_over(pipeline, generation)
    return state


def generation_over(pipeline: str, generation: int, *, found: int | None = None) -> OwnershipLost:
    """The error of a lane whose pipeline another run, or a later `open` of its own run, goes on with. `found`: the
    target's generation; a lower one says that the target has lost what it committed since that run was opened.
    """
    lost = found is not None and found < generation
    return OwnershipLost(
        f"generation {generation} is over"
        + (f": the target has lost commits, and is back in generation {found}" if lost else ""),
        op="apply",
        pipeline=pipeline,
        hint="Clear the task open with everything downstream of it.",
    )

"""Check that a log still is what its target has applied of it: a log that was restored, and its source with it, goes on
with other transactions under the numbers of those that it has lost.

A position never is beyond its log, and neither is a plan, or the end of a run once it is settled: they follow what is
durable there. And where the last planned epoch ends at the source, so does its last transaction in the log. The source
cannot tell: it was restored, too.
"""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.errors import START_ANEW, LogError, ParallelApplyError, TargetError, Unavailable
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.model.position import furthest
from airflow_parallel_apply.pipeline.stream.address import place_of_log
from airflow_parallel_apply.pipeline.target.lost_positions import of_another_log, positions_lost

_ANEW: Final = (
    "If the source was restored with it, restore the target to that moment, too, and a ledger that is elsewhere; if "
    f"not, restore the log's newest copy, or start anew. {START_ANEW}"
)


def require_history(log_url: str, session: PipelineSession, *, place: str) -> None:
    """`place`: the target's. Errors: `Unavailable` where the log ends below what was applied or planned, or below the
    end of a run, which a network file system may show for a moment; `LogError` where it has another history;
    `TargetError` where the target knows nothing of the pipeline, and the log lacks rows that it had, or where it has
    positions of another log than its ledger elsewhere knows; those of log, ledger and target.
    """
    ledger = session.ledger
    known = ledger.state()
    is_known = known is None or not known.channels or bool(session.target.routing_digest())
    if known is not None and not is_known and not open_reader(log_url).identity.begins_empty:
        raise positions_lost(place, pipeline=known.pipeline)
    applied_log = session.target.log_id()
    if known is not None and applied_log not in ("", known.log_id):
        raise of_another_log(place, applied_log, known.log_id, pipeline=known.pipeline)
    # Before the log is looked at, which is always ahead of them.
    positions = session.target.positions() if is_known else ()
    applied_seqno = furthest(positions)
    reached = max(applied_seqno, ledger.planned_seqno())
    reached = max((reached, *ledger.run_cuts(reached)))
    log = open_reader(log_url)
    state = log.state()
    if reached > state.last_seqno:
        raise Unavailable(
            f"the log at {place_of_log(log_url)} ends at seqno {state.last_seqno}, and its pipeline has come to seqno "
            f"{reached}: it is an older state of itself",
            op="prepare",
            hint=f"It is tried again: a network file system may show an older state for a moment. {_ANEW}",
        )
    number = ledger.last_epoch_at(reached)
    for epoch in ledger.epochs(after_number=number - 1, limit=1) if number >= 0 else ():
        if epoch.end_offset is None or epoch.last_seqno <= state.purged_seqno:
            continue
        (found,) = log.transactions(epoch.last_seqno - 1, epoch.last_seqno).column("end_offset").to_pylist()
        if found != epoch.end_offset:
            raise LogError(
                f"the log at {place_of_log(log_url)} has another transaction of seqno {epoch.last_seqno} than the one "
                "that its pipeline has planned",
                op="prepare",
                seqno=epoch.last_seqno,
                hint=_ANEW,
            )


def history_findings(log_url: str, session: PipelineSession, pipeline: str, *, place: str) -> tuple[Finding, ...]:
    """The same, for people. Errors: those of ledger and target."""
    try:
        require_history(log_url, session, place=place)
    except (Unavailable, LogError, TargetError) as error:
        return (_finding(log_url, error, pipeline),)
    return ()


def _finding(log_url: str, error: ParallelApplyError, pipeline: str) -> Finding:
    where = place_of_log(log_url)
    return Finding(
        severity=Severity.ERROR,
        side=Side.LOG,
        where=where,
        what=error.message,
        note=error.at(pipeline=pipeline).hint or "",
    )

"""Extending the plan: from what the ledger has planned up to what the log has captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import START_ANEW, OwnershipLost, PlanError
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Epoch
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.plan.planner import plan_epochs
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits

_WINDOW_TRANSACTIONS: Final = 1_000_000
"""Planned at once, whatever the backlog: bounds the planner's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The addition of one call to the plan."""

    planned_seqno: int
    epochs: tuple[Epoch, ...]


def extend_plan(
    log: LogReader,
    session: PipelineSession,
    config: PipelineConfig,
    *,
    generation: int | None,
    last_seqno: int | None = None,
) -> Planned:
    """Plan what was captured up to now, or to `last_seqno`. Idempotent; of several planners at once one wins each
    window, and the others go on behind it, since the winner may have seen less of the log.

    `generation`: as in `Ledger.add_epochs`. While the bound of its run is not known, an owner plans only what was
    captured before it looked for the bound: what others capture since may lie on both sides of it.

    Errors: `OwnershipLost` when the routing changed; `PlanError` where the ledger knows of copies that the log does not
    pass over; those of `Ledger.add_epochs`.
    """
    captured = log.state().last_seqno if last_seqno is None else last_seqno
    ledger, low_seqno = session.ledger, low_watermark(session.target.positions())
    after = max(ledger.planned_seqno(), low_seqno)
    routing = ledger.routing()
    added: list[Epoch] = []
    while after < captured:
        last = min(captured, after + _WINDOW_TRANSACTIONS)
        recopied = _recopied(log)
        epochs = plan_epochs(
            log,
            after_seqno=after,
            last_seqno=last,
            first_number=ledger.next_epoch_number(),
            routing=routing,
            limits=EpochLimits(max_changes=config.epoch_max_changes, max_bytes=config.epoch_max_bytes),
            cuts=session.plan_cuts(after),
        )
        if ledger.add_epochs(
            epochs,
            routing_digest=routing.digest,
            after_seqno=after,
            low_seqno=low_seqno,
            generation=generation,
            recopied=recopied,
        ):
            added += epochs
            after = last
            continue
        low_seqno = low_watermark(session.target.positions())
        before, after = after, max(ledger.planned_seqno(), low_seqno)
        if after == before and recopied == _recopied(log):
            if ledger.routing().digest == routing.digest:
                copies = session.target.recopied()
                names = sorted(f"{one.schema}.{one.table}" for one in copies if one.recopy_id not in recopied)
                # A target that was put back, too, has fewer.
                which = f": {listed(names)}" if names else ""
                raise PlanError(
                    f"the ledger knows of tables that were copied anew, and the log does not{which}",
                    op="plan",
                    pipeline=config.pipeline,
                    hint="An earlier state of the log was put back. Restore its newest copy; or copy these tables "
                    "again (parallel-apply recopy), partitions by naming their table. If one of them is gone since, "
                    f"only a new start leads on. {START_ANEW}",
                )
            raise OwnershipLost(
                "another run changed the pipeline's routing",
                op="plan",
                pipeline=config.pipeline,
                hint="Clear the run from its task capture on.",
            )
    return Planned(planned_seqno=after, epochs=tuple(added))


def _recopied(log: LogReader) -> frozenset[str]:
    return frozenset(one.recopy_id for one in log.state().passed_over)

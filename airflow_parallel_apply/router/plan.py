"""The router's first verb: plan what was captured, durably, in the ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.errors import LeaseBusy, ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import RoutingChange
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import EpochKind
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.extend import Planned, extend_plan
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from airflow_parallel_apply.pipeline.store.feed import Fed, feed_store
from airflow_parallel_apply.pipeline.store.protocol import StoreStatus
from airflow_parallel_apply.service.address import is_service

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The outcome of planning. `left_to_open`: another run owns the pipeline, so `open` plans once it has the lease."""

    planned_seqno: int
    epochs: int
    critical: int
    rows: int
    left_to_open: bool
    store: StoreStatus | None = None
    """The store's content now; None for one that holds no rows."""

    def __str__(self) -> str:
        if self.left_to_open:
            return f"planned up to seqno {self.planned_seqno}; another run owns the pipeline and will plan the rest"
        return (
            f"planned up to seqno {self.planned_seqno}: {self.epochs} new epochs, {self.critical} of them critical, "
            f"{self.rows:,} rows"
        )

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "store": None if self.store is None else asdict(self.store)}


def plan(config: PipelineConfig, target: Endpoint) -> PlanReport:
    """Extend the plan up to what is captured. Idempotent. Errors: `PlanError` when the routing may not change now."""
    with closing(open_pipeline(target, config.pipeline, log_url=config.log_url)) as writing:
        writing.require_begun(config.pipeline)
        log = open_reader(config.log_url)
        try:
            writing.route(
                RoutingChange(
                    generation=None,
                    log_id=log.identity.log_id,
                    routing=routing_of(config, writing.target.colocation(config.tables)),
                    is_known=True,
                )
            )
            planned = extend_plan(log, writing, config, generation=None)
            with _router(config):
                fed = feed_store(config, log, writing)
            return _report(planned, fed, left_to_open=False)
        except LeaseBusy:
            return _report(Planned(planned_seqno=writing.planned_seqno(), epochs=()), Fed(), left_to_open=True)


@contextmanager
def _router(config: PipelineConfig) -> Iterator[None]:
    """The embedded router for whoever feeds and reads on this host, where the pipeline's store is in one. It stays for
    a while behind this; where it does not start, the log serves the channels.
    """
    with ExitStack() as stack:
        is_elsewhere = config.router is not None or is_service(config.log_url)
        if chosen_store(config).store is StoreName.MEMORY and not is_elsewhere:
            from airflow_parallel_apply.router.embedded import embedded_router

            try:
                stack.enter_context(embedded_router())
            except ParallelApplyError as error:
                _logger.warning("no router on this host: %s", error)
        yield


def _report(planned: Planned, fed: Fed, *, left_to_open: bool) -> PlanReport:
    return PlanReport(
        planned_seqno=planned.planned_seqno,
        epochs=len(planned.epochs),
        critical=sum(epoch.kind is EpochKind.SERIAL for epoch in planned.epochs),
        rows=sum(epoch.row_count for epoch in planned.epochs),
        left_to_open=left_to_open,
        store=fed.status,
    )

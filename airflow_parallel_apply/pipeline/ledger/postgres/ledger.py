"""`Ledger` for PostgreSQL: the modules of this folder behind the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from airflow_parallel_apply.pipeline.ledger.postgres.drop import drop_ledger
from airflow_parallel_apply.pipeline.ledger.postgres.lease import Lease
from airflow_parallel_apply.pipeline.ledger.postgres.plan import PlanTable
from airflow_parallel_apply.pipeline.ledger.postgres.recopied import hold_recopy
from airflow_parallel_apply.pipeline.ledger.postgres.rework import count_rework, read_rework
from airflow_parallel_apply.pipeline.ledger.postgres.runs import Runs
from airflow_parallel_apply.pipeline.ledger.protocol import (
    LeaseRequest,
    PipelineState,
    RoutedPositions,
    RoutingChange,
    RunBounds,
)
from airflow_parallel_apply.pipeline.model.epoch import Epoch, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkCount
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed, migrate, read_identity
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.protocol import Recopied
from airflow_parallel_apply.postgres.pooler import POOLER_FOUND, shares_sessions
from airflow_parallel_apply.postgres.settings import POOLER_HINT


class PostgresLedger:
    """See `Ledger`. `session`: the target's own where both are in one database. `target`: names the database of a
    target elsewhere.
    """

    def __init__(self, session: Session, *, target: Callable[[], str] | None = None) -> None:
        self._session = session
        self._is_one_database = target is None
        self._lease = Lease(session, target)
        self._runs = Runs(session)
        self._plan = PlanTable(session)

    # --- set-up ---
    def findings(self) -> tuple[Finding, ...]:
        with self._session.errors("check"):
            if not shares_sessions(self._session.connection(), self._session.another):
                return ()
        return (new_finding(Side.TARGET, "ledger", f"the ledger: {POOLER_FOUND}", note=POOLER_HINT),)

    def is_installed(self) -> bool:
        return is_installed(self._session)

    def migrate(self) -> tuple[str, ...]:
        return migrate(self._session)

    def identity(self) -> str:
        return str(read_identity(self._session))

    def drop(self, drop_target: Callable[[], Removal], *, force: bool) -> Removal:
        return drop_ledger(self._session, drop_target, force=force, is_one_database=self._is_one_database)

    # --- owner ---
    def state(self) -> PipelineState | None:
        return self._lease.state()

    def acquire(self, request: LeaseRequest) -> PipelineState:
        return self._lease.acquire(request)

    def renew_lease(self, generation: int, lease: timedelta) -> None:
        self._lease.renew(generation, lease)

    def release(self, generation: int, *, clean_stop_seqno: int | None) -> None:
        self._lease.release(generation, clean_stop_seqno)

    def keep_runs_out(self) -> None:
        hold_recopy(self._session)

    # --- routing ---
    def routing(self) -> Routing:
        return self._lease.routing()

    def route(self, change: RoutingChange, positions: RoutedPositions) -> None:
        self._lease.route(change, positions)

    # --- run bounds ---
    def run_bounds(self, run_id: str) -> RunBounds | None:
        return self._runs.bounds(run_id)

    def freeze_run(self, run_id: str, until_offset: Offset, interval: Interval | None = None) -> RunBounds:
        return self._runs.freeze(run_id, until_offset, interval)

    def settle_run(self, run_id: str, until_seqno: int) -> RunBounds:
        return self._runs.settle(run_id, until_seqno)

    def run_cuts(self, above_seqno: int) -> tuple[int, ...]:
        return self._runs.cuts(above_seqno)

    def covered_time(self, seqno: int) -> datetime | None:
        return self._runs.covered_time(seqno)

    # --- plan ---
    def planned_seqno(self) -> int:
        return self._plan.planned_seqno()

    def next_epoch_number(self) -> int:
        return self._plan.next_number()

    def last_epoch_at(self, seqno: int) -> int:
        return self._plan.last_at(seqno)

    def add_epochs(
        self,
        epochs: Sequence[Epoch],
        *,
        routing_digest: str,
        after_seqno: int,
        low_seqno: int,
        generation: int | None,
        recopied: frozenset[str] = frozenset(),
    ) -> bool:
        return self._plan.add(
            epochs,
            routing_digest=routing_digest,
            after_seqno=after_seqno,
            low_seqno=low_seqno,
            generation=generation,
            recopied=recopied,
        )

    def epochs(self, *, after_number: int = -1, above_seqno: int = -1, limit: int | None = None) -> tuple[Epoch, ...]:
        return self._plan.epochs(after_number=after_number, above_seqno=above_seqno, limit=limit)

    def is_planned(self, unit: Unit) -> bool:
        return self._plan.is_planned(unit)

    def cut_plan(self, seqno: int | None, positions: Sequence[Position], *, generation: int) -> None:
        self._plan.cut(seqno, positions, generation)

    def channel_rows(self, positions: Sequence[Position]) -> tuple[tuple[int, int], ...]:
        return self._plan.channel_rows(positions)

    def purge_plan(self, through_seqno: int) -> int:
        return self._plan.purge(through_seqno)

    def note_recopied(self, tables: Sequence[Recopied], *, above_seqno: int) -> None:
        self._plan.note_recopied(tables, above_seqno)

    # --- conflicts ---
    def count_rework(self, rework: Rework, *, seqno: int) -> None:
        count_rework(self._session, rework, seqno=seqno)

    def rework(self) -> tuple[ReworkCount, ...]:
        return read_rework(self._session)

    def close(self) -> None:
        self._session.close()

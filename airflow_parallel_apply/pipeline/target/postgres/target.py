"""`Target` for PostgreSQL: the rooms of this folder behind the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import psycopg

from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.epoch import Epoch, Unit
from airflow_parallel_apply.pipeline.errors import ConflictReason, ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.finding import Finding
from airflow_parallel_apply.pipeline.interval import Interval
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.position import Position
from airflow_parallel_apply.pipeline.removal import Removal
from airflow_parallel_apply.pipeline.target.postgres.check import check_target, find_trouble, nested_findings
from airflow_parallel_apply.pipeline.target.postgres.conflicts import count_conflict, read_conflicts
from airflow_parallel_apply.pipeline.target.postgres.drop import drop_target
from airflow_parallel_apply.pipeline.target.postgres.fence import Fence
from airflow_parallel_apply.pipeline.target.postgres.merge import MissingRows, explain_missing
from airflow_parallel_apply.pipeline.target.postgres.naming import DEFAULT_SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.owners import owner_findings
from airflow_parallel_apply.pipeline.target.postgres.plan import PlanTable
from airflow_parallel_apply.pipeline.target.postgres.positions import (
    Standing,
    lost,
    move,
    read_positions,
    standing,
    take,
)
from airflow_parallel_apply.pipeline.target.postgres.recopied import read_recopied
from airflow_parallel_apply.pipeline.target.postgres.runs import Runs
from airflow_parallel_apply.pipeline.target.postgres.schema import is_installed, migrate
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging import drop_claim_staging
from airflow_parallel_apply.pipeline.target.postgres.steps import Steps
from airflow_parallel_apply.pipeline.target.postgres.ties import find_ties
from airflow_parallel_apply.pipeline.target.protocol import (
    ConflictCount,
    FenceState,
    Recopied,
    RunBounds,
    TargetIdentity,
)
from airflow_parallel_apply.pipeline.target.steps import Statement, Step


class PostgresTarget:
    """See `Target`. Opens its session when first used.

    `relations`: a relation of the log by its id. `synchronous_commit`: None leaves it as the server has it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        pipeline: str,
        *,
        relations: Callable[[int], Relation],
        schema: str = DEFAULT_SCHEMA,
        synchronous_commit: str | None = None,
    ) -> None:
        self._session = Session(endpoint.url, pipeline=pipeline, schema=schema, synchronous_commit=synchronous_commit)
        self._relations = relations
        self._fence = Fence(self._session)
        self._runs = Runs(self._session)
        self._plan = PlanTable(self._session)

    # --- set-up ---
    def is_installed(self) -> bool:
        return is_installed(self._session)

    def migrate(self) -> tuple[str, ...]:
        return migrate(self._session)

    def drop(self, *, force: bool) -> Removal:
        return drop_target(self._session, force=force)

    def identity(self) -> TargetIdentity:
        with self._session.errors("identify"):
            row = self._session.connection().execute(self._session.sql("schema", "identity")).fetchone()
        if row is None:
            raise Unavailable("the target did not describe itself", op="identify")
        return TargetIdentity(system_identifier=row[0], database=row[1])

    def check(self, relations: Sequence[Relation], *, channels: int, require_empty: bool) -> tuple[Finding, ...]:
        return check_target(self._session, relations, channels=channels, require_empty=require_empty)

    def findings(
        self, relations: Sequence[Relation], *, channels: int, require_empty: bool, may_lack_tables: bool = False
    ) -> tuple[Finding, ...]:
        return find_trouble(
            self._session,
            relations,
            channels=channels,
            require_empty=require_empty,
            may_lack_tables=may_lack_tables,
        )

    def ddl_findings(self, relations: Sequence[Relation]) -> tuple[Finding, ...]:
        with self._session.transaction("check") as connection:
            return owner_findings(connection, self._session, relations)

    def nested_findings(self, relations: Sequence[Relation]) -> tuple[Finding, ...]:
        return nested_findings(self._session, [(relation.schema, relation.table) for relation in relations])

    # --- fence ---
    def fence(self) -> FenceState | None:
        return self._fence.state()

    def acquire(self, *, log_id: str, owner: str, lease: timedelta, queue: str = "", above: int = 0) -> FenceState:
        return self._fence.acquire(log_id=log_id, owner=owner, lease=lease, queue=queue, above=above)

    def renew_fence(self, generation: int, lease: timedelta) -> None:
        self._fence.renew(generation, lease)

    def release(self, generation: int, *, clean_stop_seqno: int | None) -> None:
        self._fence.release(generation, clean_stop_seqno)

    def ties(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        return find_ties(self._session, tables)

    def routing(self) -> Routing:
        return self._fence.routing()

    def route(self, generation: int | None, *, log_id: str, routing: Routing) -> None:
        self._fence.route(generation, log_id=log_id, routing=routing)

    def recopied(self) -> tuple[Recopied, ...]:
        return read_recopied(self._session)

    # --- run bounds ---
    def run_bounds(self, run_id: str) -> RunBounds | None:
        return self._runs.bounds(run_id)

    def freeze_run(self, run_id: str, until_lsn: int, interval: Interval | None = None) -> RunBounds:
        return self._runs.freeze(run_id, until_lsn, interval)

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
        generation: int | None,
        recopied: frozenset[str] = frozenset(),
    ) -> bool:
        return self._plan.add(
            epochs,
            routing_digest=routing_digest,
            after_seqno=after_seqno,
            generation=generation,
            recopied=recopied,
        )

    def epochs(self, *, after_number: int = -1, above_seqno: int = -1, limit: int | None = None) -> tuple[Epoch, ...]:
        return self._plan.epochs(after_number=after_number, above_seqno=above_seqno, limit=limit)

    def cut_plan(self, seqno: int, *, generation: int) -> None:
        self._plan.cut(seqno, generation)

    def channel_rows(self) -> tuple[tuple[int, int], ...]:
        return self._plan.channel_rows()

    def purge_plan(self, through_seqno: int) -> int:
        return self._plan.purge(through_seqno)

    # --- positions ---
    def settled_positions(self) -> tuple[Position, ...]:
        with self._session.transaction("settle positions") as connection:
            found = read_positions(connection, self._session)
            # What we see committed has its commit record before ours in the WAL, and ours waits for the disk.
            connection.execute(self._session.sql("positions", "wait_for_disk"))
            connection.execute(self._session.sql("positions", "write"))
        return found

    def positions(self) -> tuple[Position, ...]:
        with self._session.errors("read positions"):
            return read_positions(self._session.connection(), self._session)

    def take(self, channel: int | None, *, generation: int, token: str, routing_digest: str | None = None) -> Position:
        return take(self._session, channel, generation=generation, token=token, routing_digest=routing_digest)

    def leave(self) -> None:
        with self._session.errors("leave"):
            self._session.rest()

    # --- apply ---
    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        try:
            with self._applying(unit) as connection:
                if connection is not None:
                    Steps(connection, self._session, self._relations, unit).run(steps)
                    move(connection, self._session, unit)
        finally:
            if any(isinstance(step, Statement) for step in steps):
                # The text may have changed settings of the session.
                self._session.close()

    def count_conflict(self, *, reason: ConflictReason, table: str | None, seqno: int) -> None:
        count_conflict(self._session, reason=reason, table=table, seqno=seqno)

    def conflicts(self) -> tuple[ConflictCount, ...]:
        return read_conflicts(self._session)

    def discard(self, token: str) -> None:
        with self._session.transaction("discard") as connection:
            drop_claim_staging(connection, schema=self._session.schema, pipeline=self._session.pipeline, token=token)

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def _applying(self, unit: Unit) -> Iterator[Connection | None]:
        """The transaction of a unit; None when the unit is committed already. After an error the positions are read
        again, since it may only say that somebody else was here: then the unit is done, or the ownership is lost.
        """
        with self._session.errors("commit", channel=unit.channel, seqno=unit.last_seqno):
            try:
                connection = self._session.connection()
                with connection.transaction():
                    before = standing(connection, self._session, unit, lock=unit.channel is None)
                    if before is Standing.LOST:
                        raise lost(unit)
                    yield None if before is Standing.DONE else connection
            except (psycopg.Error, ParallelApplyError, MissingRows) as error:
                if self._done_by_another(unit):
                    return
                if isinstance(error, MissingRows):
                    raise explain_missing(self._session, error) from error
                raise

    def _done_by_another(self, unit: Unit) -> bool:
        """Errors: psycopg's own, where the target cannot be asked; `OwnershipLost`."""
        match standing(self._session.connection(), self._session, unit):
            case Standing.DONE:
                return True
            case Standing.LOST:
                raise lost(unit)
            case Standing.BEFORE:
                return False

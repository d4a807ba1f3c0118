"""A thread's session with a pipeline's ledger and its target, and what concerns both.

In one database the two share a session: what is nested here is one transaction there, and a crash leaves all of it or
nothing. In two databases each commits by itself, in an order in which whoever comes next can tell what is missing::

    acquire   ledger: owner, generation g ──▶ target: positions own g
    route     ledger: row locked ──▶ target: positions for the new routing ──▶ ledger: routing, plan dropped
    drop      ledger: row locked ──▶ target: positions, staging ──▶ ledger: row deleted

A crash after the first arrow of `acquire` leaves positions of the generation before. Its lanes, whose lease was over,
may still commit what they hold, each unit whole and in order; the next `acquire`, by whomever, raises the generation
again and stamps the positions then. A crash after the second arrow of `route` or `drop` leaves a target that is ahead
of its ledger: the same call, or another routing, finds it so and writes the rest. Each step is idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError, OwnershipLost, ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, Ledger, PipelineState, RoutingChange
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import all_equal, low_watermark
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSession:
    """Serves one thread. `is_one_database`: the ledger shares the target's session."""

    ledger: Ledger
    target: Target
    is_one_database: bool

    def findings(self) -> tuple[Finding, ...]:
        """Find what keeps runs from relying on a ledger elsewhere; of one in the target's database the target tells.
        Errors: the pipeline's.
        """
        return () if self.is_one_database else self.ledger.findings()

    def migrate(self) -> tuple[str, ...]:
        """Create or upgrade the tables of both; says what it created."""
        if self.is_one_database:
            return self.target.migrate()
        if self.ledger.identity() == str(self.target.identity()):
            raise ConfigurationError(
                "the ledger's connection leads to the target's own database, by another address",
                op="prepare",
                hint="Leave ledger_conn_id (--ledger) empty: that is where the ledger is then.",
            )
        return (*self.ledger.migrate(), *self.target.migrate())

    def state(self) -> PipelineState | None:
        """See `Ledger.state`. Errors: `ConfigurationError` where the ledger knows nothing of a pipeline whose positions
        the target has: to begin anew would apply what is applied.
        """
        found = self.ledger.state()
        if found is None and not self.is_one_database and self.target.generation():
            raise ConfigurationError(
                "the target has positions of the pipeline, which its ledger in database "
                f"{self.ledger.identity()} has lost",
                hint=f"Restore the ledger's database, or start anew. {START_ANEW}",
            )
        return found

    def require_begun(self, pipeline: str) -> None:
        """Raise `ConfigurationError` for a pipeline that no capture has made: it has neither log nor positions, and
        nothing is lost.
        """
        if self.state() is None:
            raise ConfigurationError(
                "the pipeline's first run has not captured anything: there is no log yet, and no position",
                pipeline=pipeline,
                hint="Clear the task capture with everything downstream of it, or run parallel-apply prepare.",
            )

    def acquire(self, request: LeaseRequest) -> PipelineState:
        """Own the pipeline and all its positions under a new generation, which is above all that ledger, target and
        queue know. Errors: those of `Ledger.acquire`; `OwnershipLost` when another run was faster.
        """
        if not self.is_one_database:
            request = replace(request, above=max(request.above, self.target.generation()))
        taken = self.ledger.acquire(request)
        try:
            self.target.own(taken.generation)
        except ParallelApplyError:
            # Nothing was begun: the next run need not wait for the lease to end.
            with suppress(ParallelApplyError):
                self.ledger.release(taken.generation, clean_stop_seqno=None)
            raise
        found = self.ledger.state()
        if found is None or found.generation != taken.generation:
            raise OwnershipLost("another run took the pipeline over", op="acquire", pipeline=taken.pipeline)
        return found

    def generations(self) -> tuple[int | None, ...]:
        """That of the ledger, None where it knows no such pipeline, and that of the positions: the same, unless a run
        is just taking over, or one of two databases has lost commits.
        """
        state = self.ledger.state()
        known = None if state is None else state.generation
        return (known,) if self.is_one_database else (known, self.target.generation())

    def route(self, change: RoutingChange) -> None:
        """Register or change the routing: positions become `channels` rows at one seqno (NO_SEQNO at first), and the
        plan above it is dropped. No-op when the digest is the same. `PlanError` unless all positions are equal.

        A caller that owns nothing may register a pipeline, or change an idle one; the change raises the generation, so
        that no lane of before goes on. `LeaseBusy` while the pipeline has an owner, even one whose lease is over: its
        lanes may still go on. Other errors: those of `Ledger.acquire`.

        What lies together by the target's foreign keys alone changes when all positions are equal: until then the
        former routing stays, and rows that refer to those of another channel wait for a merge point.
        """
        state = self.ledger.state()
        if state is not None and state.channels and not all_equal(self.target.positions()):
            former = self.ledger.routing()
            if replace(change.routing, colocation=former.colocation) == former:
                change = replace(change, routing=former)
        self.ledger.route(change, self.target)

    def drop(self, *, force: bool) -> Removal:
        """Remove everything of this pipeline from both. Idempotent. `LeaseBusy` while a run's lease lasts, unless
        `force`.
        """
        return self.ledger.drop(lambda: self.target.drop(force=force), force=force)

    def planned_seqno(self) -> int:
        """Last seqno of the last planned epoch, or the low watermark where that is higher."""
        return max(self.ledger.planned_seqno(), low_watermark(self.target.positions()))

    def plan_cuts(self, above_seqno: int) -> tuple[int, ...]:
        """The seqnos above one at which the planner must end an epoch: ends of runs, and positions."""
        resting = {position.seqno for position in self.target.positions() if position.seqno > above_seqno}
        return tuple(sorted(resting.union(self.ledger.run_cuts(above_seqno))))

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        """See `Target.commit`. A position rests only where the plan says: what was cut from a plan that has been lost
        since would leave it elsewhere, inside an epoch that is planned anew. Errors: those of `Target.commit`;
        `OwnershipLost` where the plan does not know the unit.
        """
        if not self.is_one_database and not self.ledger.is_planned(unit):
            raise OwnershipLost(
                f"no planned epoch {unit.epoch} ends at seqno {unit.last_seqno}: the ledger has lost commits",
                channel=unit.channel,
                seqno=unit.last_seqno,
            )
        self.target.commit(unit, steps)

    def close(self) -> None:
        """Idempotent."""
        self.target.close()
        if not self.is_one_database:
            self.ledger.close()

"""A ledger: what holds for a pipeline as a whole, beside the positions that its target keeps with the rows.

It says who owns the pipeline under which generation, how it is routed, where its runs end, what is planned, and how
often channels met a conflict. By default it lies in the target's database, where one session and one transaction serve
both; it may lie in another database. `PipelineSession` holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.model.epoch import Epoch, Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkCount
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.protocol import Recopied


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """A pipeline's row: who owns it, under which generation, and how it was last routed."""

    pipeline: str
    log_id: str
    routing_digest: str
    channels: int
    generation: int
    owner: str | None
    lease_until: datetime | None
    is_owned: bool
    """True if the owner's lease lasted when this was read, by the ledger's clock."""
    clean_stop_seqno: int | None
    """The seqno of the last clean shutdown, None while a run is under way or after a crash."""
    lapsed_for: timedelta | None = None
    """The time since the owner's lease ended, by the ledger's clock; None while it lasts, or where nobody owns it."""
    queue: str = ""
    """The place of the generation's tasks, as a `QueueEndpoint` names it; empty: the ledger's own database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A request to own a pipeline, by a run or by a command that stands in for one."""

    log_id: str
    """The log that the pipeline is registered with, or will be."""
    owner: str
    lease: timedelta
    """How long the lease lasts unless it is renewed."""
    queue: str = ""
    """The place of the new generation's tasks, as `PipelineState.queue`."""
    above: int = 0
    """The new generation is higher than this: a ledger that was restored may have forgotten generations that the queue
    has tasks of.
    """
    is_known: bool = False
    """True if the caller has seen the pipeline: one that is gone was removed, and is not registered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingChange:
    """The routing that a pipeline gets: its first, another one, or the same again."""

    generation: int | None
    """The caller's generation; None: the caller owns nothing."""
    log_id: str
    routing: Routing
    is_known: bool = False
    """As `LeaseRequest.is_known`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Frozen by run id when the run first opens (law 11)."""

    run_id: str
    until_offset: Offset
    until_seqno: int | None
    """Last seqno of the run; known once the log reaches it."""
    from_time: datetime | None = None
    until_time: datetime | None = None
    """The data interval [from_time, until_time) of a run that has one, else None: the offset alone bounds it. The
    source was past `until_time` at `until_offset`.
    """


class RoutedPositions(Protocol):
    """A target, as far as a change of routing concerns it."""

    def routing_digest(self) -> str:
        """The digest of the routing that the positions were made for; empty where there are none."""
        ...

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int: ...


class Ledger(Protocol):
    """One pipeline's ledger. One instance serves one thread."""

    # --- set-up ---
    def findings(self) -> tuple[Finding, ...]:
        """Find what keeps runs from relying on the ledger; reads only. Errors: the pipeline's."""
        ...

    def is_installed(self) -> bool:
        """True if the ledger's tables are there; reads only."""
        ...

    def migrate(self) -> tuple[str, ...]:
        """Create or upgrade the ledger's tables, under a lock; says what it created."""
        ...

    def identity(self) -> str:
        """The server and database that this is, however it is reached."""
        ...

    def drop(self, drop_target: Callable[[], Removal], *, force: bool) -> Removal:
        """Forget the pipeline, and call `drop_target` before that is committed: a crash in between leaves a pipeline
        that can be dropped again. Idempotent. `LeaseBusy` while a run's lease lasts, unless `force`; then nothing is
        called.
        """
        ...

    # --- owner ---
    def state(self) -> PipelineState | None:
        """None where the ledger knows no such pipeline, or is not installed."""
        ...

    def acquire(self, request: LeaseRequest) -> PipelineState:
        """Take the lease and raise the generation. Registers the pipeline on first use. The same owner re-enters at
        once. Errors: `LeaseBusy` while another owner's lease lasts, or tables are copied anew; `ConfigurationError` for
        another log than the registered one; `OwnershipLost` if a known pipeline is gone: nothing begins anew at the
        log's beginning.
        """
        ...

    def renew_lease(self, generation: int, lease: timedelta) -> None:
        """`OwnershipLost` when the generation is over."""
        ...

    def release(self, generation: int, *, clean_stop_seqno: int | None) -> None:
        """End the ownership. `OwnershipLost` when the generation is over."""
        ...

    def keep_runs_out(self) -> None:
        """Let nobody acquire the pipeline as long as this session lives. `LeaseBusy` while another one does this."""
        ...

    # --- routing ---
    def routing(self) -> Routing:
        """The pipeline's last routing. `ConfigurationError` if there was none."""
        ...

    def route(self, change: RoutingChange, positions: RoutedPositions) -> None:
        """See `PipelineSession.route`. `positions.lay_out` is called before the change is committed."""
        ...

    # --- run bounds ---
    def run_bounds(self, run_id: str) -> RunBounds | None:
        """The frozen bounds of a run; None for a run that never opened."""
        ...

    def freeze_run(self, run_id: str, until_offset: Offset, interval: Interval | None = None) -> RunBounds:
        """First call wins; later calls return what it froze. A run id that comes back with another interval is another
        run, and frozen anew.

        With an interval the offset becomes monotone in its end over all runs: never above that of a run with a later
        end, which has seen the source past this one already, nor below that of a run with an earlier end.
        """
        ...

    def settle_run(self, run_id: str, until_seqno: int) -> RunBounds:
        """Fix `until_seqno`; first call wins."""
        ...

    def run_cuts(self, above_seqno: int) -> tuple[int, ...]:
        """The settled `until_seqno`s of runs above a seqno: where the planner must end an epoch (law 11)."""
        ...

    def covered_time(self, seqno: int) -> datetime | None:
        """The latest end of an interval whose run ends at or below a seqno; None where there is none."""
        ...

    # --- plan ---
    def planned_seqno(self) -> int:
        """Last seqno of the last planned epoch; NO_SEQNO where there is none."""
        ...

    def next_epoch_number(self) -> int:
        """One above the last planned epoch's number; 0 where there is none."""
        ...

    def last_epoch_at(self, seqno: int) -> int:
        """Number of the last planned epoch with last_seqno <= seqno; -1 where there is none."""
        ...

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
        """Append to the plan; all or nothing. False when another planner was faster (neither the plan nor `low_seqno`,
        the low watermark, ends at `after_seqno` any more), the digest is another, or the log was read before a table
        was copied anew: `recopied` are the copies in favour of which it passed over changes then. A low watermark that
        was read before is good enough: positions move along the plan alone.

        Only its owner plans what has one: another planner may not know of the bound of the run that is under way.
        `generation` None: the caller owns nothing, and gets `LeaseBusy` then, also when the owner's lease is over;
        `OwnershipLost` when the generation is over.
        """
        ...

    def epochs(self, *, after_number: int = -1, above_seqno: int = -1, limit: int | None = None) -> tuple[Epoch, ...]:
        """Planned epochs in order with number > after_number and last_seqno > above_seqno."""
        ...

    def is_planned(self, unit: Unit) -> bool:
        """True if a unit ends where the plan says: at the end of its epoch, or between the transactions of a serial
        one.
        """
        ...

    def cut_plan(self, seqno: int | None, positions: Sequence[Position], *, generation: int) -> None:
        """Forget the planned epochs from the one on that goes on beyond `seqno`, so that they are planned anew with a
        cut there; no-op where an epoch ends at it, and where a channel has begun that epoch. And those from the one on
        inside of which a channel stands: a ledger that had lost its end planned it, before that channel committed by
        the former plan. For the pipeline's owner, under whose generation nobody moves `positions` yet: `OwnershipLost`
        when the generation is over.
        """
        ...

    def channel_rows(self, positions: Sequence[Position]) -> tuple[tuple[int, int], ...]:
        """By channel, of the planned rows: those that it has committed, and those that it has not."""
        ...

    def purge_plan(self, through_seqno: int) -> int:
        """Forget the epochs that end at or below a seqno at which every channel is, but for the last of them, whose
        number the next ones follow. Says how many. The bounds of runs stay (law 11).
        """
        ...

    def note_recopied(self, tables: Sequence[Recopied], *, above_seqno: int) -> None:
        """Tables are copied anew: forget the planned epochs that end above a seqno, which count rows that are passed
        over, and take no plan any more that does not know of these copies. Before the rows are committed.
        """
        ...

    # --- rework ---
    def count_rework(self, rework: Rework, *, seqno: int) -> None:
        """Count work in vain that ended at a seqno. A merge point is counted once, however often it is: a claimant who
        finds it merged already counts again, since the one before may have died just after the commit.
        """
        ...

    def rework(self) -> tuple[ReworkCount, ...]:
        """Return what this pipeline did in vain, by kind, most frequent first."""
        ...

    def close(self) -> None: ...


class LedgerConnector(Protocol):
    """Opens a ledger that is not in the target's own database, by its scheme. Made without arguments."""

    def open(self, endpoint: Endpoint, pipeline: str, *, target: Callable[[], str]) -> Ledger:
        """A ledger for one thread; connects when first used. `target`: names the target's database, which the ledger
        keeps: a pipeline of the same name into another one is a `ConfigurationError`.
        """
        ...

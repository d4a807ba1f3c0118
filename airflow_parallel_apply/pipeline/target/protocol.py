"""A target: positions, plan and fence beside the rows, and the transactions that move them together.

Law 3: every commit that applies something ends by moving a position *from the expected seqno under its own
generation and claim token*, and comes to rest where the plan says. If no row matched, it rolls back and reads again: at
the end already means done, anything else means `OwnershipLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.epoch import Epoch, Unit
from airflow_parallel_apply.pipeline.errors import ConflictReason
from airflow_parallel_apply.pipeline.event import Relation
from airflow_parallel_apply.pipeline.finding import Finding
from airflow_parallel_apply.pipeline.interval import Interval
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.position import Position
from airflow_parallel_apply.pipeline.removal import Removal
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceState:
    """A pipeline's row: who owns it, under which generation, and how it was last routed."""

    pipeline: str
    log_id: str
    routing_digest: str
    channels: int
    generation: int
    owner: str | None
    lease_until: datetime | None
    is_owned: bool
    """Whether the owner's lease lasted when this was read, by the target's clock."""
    clean_stop_seqno: int | None
    """The seqno of the last clean shutdown, None while a run is under way or after a crash."""
    queue: str = ""
    """Where the generation's tasks are, as a `QueueEndpoint` names its place; empty: in the target's own database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recopied:
    """The last time that a table was copied anew: its rows are those of the source at `lsn`, and what followed."""

    schema: str
    table: str
    recopy_id: str
    lsn: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIdentity:
    """Which server and database this is, however it is reached."""

    system_identifier: str
    database: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Frozen by run id when the run first opens (law 11)."""

    run_id: str
    until_lsn: int
    until_seqno: int | None
    """Last seqno of the run; known once the log reaches it."""
    from_time: datetime | None = None
    until_time: datetime | None = None
    """The data interval [from_time, until_time) of a run that has one, else None: the LSN alone bounds it. The source
    was past `until_time` at `until_lsn`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictCount:
    """How often a merge point was opened for a reason, on a table (None: the target did not say)."""

    reason: str
    table: str | None
    count: int
    last_seqno: int
    """Where the channels met, the last time."""
    last_time: datetime


class Target(Protocol):
    """One pipeline's target. One instance serves one thread; sessions are named after pipeline, channel and token."""

    # --- set-up, only `prepare` and `open` call these ---
    def is_installed(self) -> bool:
        """Whether the schema `parallel_apply` with this pipeline's tables is there; reads only."""
        ...

    def migrate(self) -> tuple[str, ...]:
        """Create or upgrade the schema `parallel_apply` (under an advisory lock); says what it created."""
        ...

    def identity(self) -> TargetIdentity: ...

    def drop(self, *, force: bool) -> Removal:
        """Remove everything of this pipeline; the schema, too, when it was the last one. Idempotent. `FenceBusy` while
        a run's lease lasts, unless `force`.
        """
        ...

    def check(self, relations: Sequence[Relation], *, channels: int, require_empty: bool) -> tuple[Finding, ...]:
        """Refuse by name what cannot be applied: missing table, column or privilege; rows where `require_empty`. All in
        one `TargetError`. Returns what should be known all the same.
        """
        ...

    def findings(
        self, relations: Sequence[Relation], *, channels: int, require_empty: bool, may_lack_tables: bool = False
    ) -> tuple[Finding, ...]:
        """All that `check` would refuse, and what should be known; reads only."""
        ...

    def ddl_findings(self, relations: Sequence[Relation]) -> tuple[Finding, ...]:
        """What the role lacks to change these tables' definitions, as warnings; reads only."""
        ...

    def nested_findings(self, relations: Sequence[Relation]) -> tuple[Finding, ...]:
        """Of all followed tables those that are parts of another of them here; whatever DDL is on its way."""
        ...

    # --- fence ---
    def fence(self) -> FenceState | None: ...

    def acquire(self, *, log_id: str, owner: str, lease: timedelta, queue: str = "", above: int = 0) -> FenceState:
        """Take the fence and raise the generation, whose tasks are in `queue` (a place; empty: this database), beyond
        `above`: a target that was restored may have forgotten generations that the queue has tasks of.
        `FenceBusy` while another owner's lease lasts. Does not touch digest or positions; registers the pipeline on
        first use (positions come with `route`). The same owner re-enters at once. Another log id than the registered
        one is a `ConfigurationError`.
        """
        ...

    def renew_fence(self, generation: int, lease: timedelta) -> None:
        """`OwnershipLost` when the generation is over."""
        ...

    def release(self, generation: int, *, clean_stop_seqno: int | None) -> None: ...

    def ties(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        """Groups of the tables (`schema.table`) that must share a channel, since the target would refuse a child's row
        before its parent's; none where the role may apply without these checks. Each group, and all of them, by name.
        """
        ...

    def routing(self) -> Routing:
        """How the pipeline was last routed. `ConfigurationError` where it never was."""
        ...

    def route(self, generation: int | None, *, log_id: str, routing: Routing) -> None:
        """Register or change the routing: positions become `channels` rows at one seqno (NO_SEQNO at first), and the
        plan above it is dropped. No-op when the digest is the same. `PlanError` unless all positions are equal.
        `generation` None: the caller owns nothing, so only a first registration or an idle pipeline may change, and a
        change raises the generation: no lane of before goes on. `FenceBusy` while the pipeline has an owner, whose
        lease may be over: its lanes need not be.
        """
        ...

    def recopied(self) -> tuple[Recopied, ...]:
        """Tables that were copied anew, by name; none where the pipeline's tables are of a release before."""
        ...

    # --- run bounds ---
    def run_bounds(self, run_id: str) -> RunBounds | None:
        """What is frozen; None for a run that never opened."""
        ...

    def freeze_run(self, run_id: str, until_lsn: int, interval: Interval | None = None) -> RunBounds:
        """First call wins; later calls return what it froze. A run id that comes back with another interval is another
        run, and frozen anew.

        With an interval the LSN becomes monotone in its end over all runs: never above that of a run with a later
        end, which has seen the source past this one already, nor below that of a run with an earlier end.
        """
        ...

    def settle_run(self, run_id: str, until_seqno: int) -> RunBounds:
        """Fix `until_seqno`; first call wins."""
        ...

    # --- plan ---
    def planned_seqno(self) -> int:
        """Last seqno of the last planned epoch, or the low watermark where there is none."""
        ...

    def next_epoch_number(self) -> int:
        """One above the last planned epoch's number; 0 where there is none."""
        ...

    def last_epoch_at(self, seqno: int) -> int:
        """Number of the last planned epoch with last_seqno <= seqno; -1 where there is none."""
        ...

    def run_cuts(self, above_seqno: int) -> tuple[int, ...]:
        """The settled `until_seqno`s of runs above a seqno: where the planner must end an epoch (law 11); and the
        positions above it, where what is planned anew must end one.
        """
        ...

    def covered_time(self, seqno: int) -> datetime | None:
        """The latest end of an interval whose run ends at or below a seqno; None where there is none."""
        ...

    def add_epochs(
        self,
        epochs: Sequence[Epoch],
        *,
        routing_digest: str,
        after_seqno: int,
        generation: int | None,
        recopied: frozenset[str] = frozenset(),
    ) -> bool:
        """Append to the plan; all or nothing. False when another planner was faster (the plan no longer ends at
        `after_seqno`), the digest is another, or the log was read before a table was copied anew: `recopied` are the
        copies in favour of which it passed over changes then.

        Only its owner plans what has one: another planner may not know of the bound of the run that is under way.
        `generation` None: the caller owns nothing, and gets `FenceBusy` then, also when the owner's lease is over;
        `OwnershipLost` when the generation is over.
        """
        ...

    def epochs(self, *, after_number: int = -1, above_seqno: int = -1, limit: int | None = None) -> tuple[Epoch, ...]:
        """Planned epochs in order with number > after_number and last_seqno > above_seqno."""
        ...

    def cut_plan(self, seqno: int, *, generation: int) -> None:
        """Forget the planned epochs from the one on that goes on beyond `seqno`, so that they are planned anew with a
        cut there; no-op where an epoch ends at it, and where a channel has begun that epoch. For the fence's owner:
        `OwnershipLost` when the generation is over.
        """
        ...

    def channel_rows(self) -> tuple[tuple[int, int], ...]:
        """By channel, of the planned rows: those that it has committed, and those that it has not."""
        ...

    def purge_plan(self, through_seqno: int) -> int:
        """Forget the epochs that end at or below a seqno at which every channel is, but for the last of them, whose
        number the next ones follow. Says how many. The bounds of runs stay (law 11).
        """
        ...

    # --- positions ---
    def settled_positions(self) -> tuple[Position, ...]:
        """As `positions`, and not before they are on the target's disk: no crash of the target takes them back,
        whatever `synchronous_commit` they were committed under (law 7).
        """
        ...

    def positions(self) -> tuple[Position, ...]: ...

    def take(self, channel: int | None, *, generation: int, token: str, routing_digest: str | None = None) -> Position:
        """Become the one who may move this channel: end the sessions of former holders, drop their staging, write
        generation and token. `OwnershipLost` when the generation is over, or the pipeline's routing is not the one
        that the caller goes by (None: not compared). Channel None: all channels, as a serial
        unit needs; the position returned is then that of the channel furthest behind.
        """
        ...

    def leave(self) -> None:
        """Have no claim any more: this session is not one that the next `take` ends."""
        ...

    # --- apply ---
    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        """Run the steps in order and move the unit's positions to its end, in one transaction; nothing where they are
        there already. A unit of one channel moves that channel's position. One without a channel locks all positions,
        requires each at its own `unit.after` and held by `unit.token`, and moves all. Without steps it only moves them
        (sync). A unit of a merge point (`unit.after_seqnos`) frees every unique value before it is taken, whatever
        triggers see of it.
        """
        ...

    def count_conflict(self, *, reason: ConflictReason, table: str | None, seqno: int) -> None:
        """Count a merge point, at which the channels met at `seqno`. Idempotent: a claimant who finds it merged already
        counts again, since the one before may have died just after the commit.
        """
        ...

    def conflicts(self) -> tuple[ConflictCount, ...]:
        """The merge points of this pipeline, most frequent first."""
        ...

    def discard(self, token: str) -> None:
        """Drop the staging of a claim."""
        ...

    def close(self) -> None: ...


class TargetConnector(Protocol):
    """What a target's scheme names: opens targets, and does what no run needs. Made without arguments, and picklable:
    Spark's workers probe with it. Errors: `Unavailable`, `ConfigurationError`.
    """

    def open(self, endpoint: Endpoint, pipeline: str, *, relations: Callable[[int], Relation]) -> Target:
        """A target for one thread; connects when first used. `relations`: a relation of the log by its id."""
        ...

    def loader(self, endpoint: Endpoint, unit: Unit, relations: Sequence[Relation]) -> Loader:
        """What stages a unit's rows in Spark's workers. `relations`: those that the rows may be of. Connects nowhere
        by itself.
        """
        ...

    def probe(self, endpoint: Endpoint) -> None:
        """Reach the target from here, and leave. Errors: `Unavailable`, in the target's own words."""
        ...

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        """The commands that do by hand what `Target.drop` does."""
        ...

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        """The pipelines that apply to a database, by the id of each one's log; none where the role may not look."""
        ...

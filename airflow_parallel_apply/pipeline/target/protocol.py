"""A target: positions beside the rows, and the transactions that move them together.

Law 3: every commit that applies something ends by moving a position *from the expected seqno under its own generation
and claim token*. If no row matched, it rolls back and reads again: at the end already means done, anything else means
`OwnershipLost`. The ledger says who owns the pipeline and what is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Capability, Step

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.ledger.protocol import Ledger
    from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recopied:
    """The last time that a table was copied anew: its rows are those of the source at `offset`, and what followed.

    A partition is part of its table's copy, under a name of its own and with no `rows` of its own.
    """

    schema: str
    table: str
    recopy_id: str
    offset: Offset
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The branches of a group that hang between prepared and committed. `decided`: first and last seqno of a group
    whose branches are to be committed; whatever else is prepared is to be rolled back.
    """

    branches: int
    decided: tuple[int, int] | None

    def __bool__(self) -> bool:
        return bool(self.branches or self.decided)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIdentity:
    """The server and the database, however they are reached."""

    server: str
    database: str

    def __str__(self) -> str:
        return f"{self.database} of system {self.server}"


class Target(Protocol):
    """One pipeline's target. One instance serves one thread; sessions are named after pipeline, channel and token."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The steps that `commit` takes, beside `Merge`."""
        ...

    # --- set-up ---
    def is_installed(self) -> bool:
        """True if the schema `parallel_apply` with this pipeline's tables is there; reads only."""
        ...

    def migrate(self) -> tuple[str, ...]:
        """Create or upgrade the schema `parallel_apply` (under an advisory lock); says what it created."""
        ...

    def identity(self) -> TargetIdentity: ...

    def drop(self, *, force: bool) -> Removal:
        """Remove everything of this pipeline; the schema, too, when it was the last one. Idempotent. `force`: end the
        sessions of a run that may be alive.
        """
        ...

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        """Everything at the target that is otherwise than a pipeline expects, errors and warnings: server, role,
        tables. Reads only.
        """
        ...

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:
        """Return what keeps the target from holding so many prepared branches of a group, besides those it holds for
        others.
        """
        ...

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
        """Groups of the tables (`schema.table`) that must share a channel, since the target would refuse a child's row
        before its parent's; none where the role may apply without these checks. Each group, and all of them, by name.
        """
        ...

    def log_id(self) -> str:
        """The log whose changes the positions are of; empty where the target has none of this pipeline."""
        ...

    def recopied(self) -> tuple[Recopied, ...]:
        """Tables that were copied anew, by name; none where the pipeline's tables are of a release before."""
        ...

    # --- positions ---
    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:
        """By channel. `durable`: not before they are on the target's disk; no crash of the target takes them back,
        whatever `synchronous_commit` they were committed under (law 7).
        """
        ...

    def pending(self) -> Pending:
        """Return what is prepared or decided now; reads only. During a run there is nearly always something."""
        ...

    def held_up(self) -> tuple[Finding, ...]:
        """Warn of each session of the pipeline that waits for a lock of somebody else; reads only."""
        ...

    def generation(self) -> int:
        """The last generation that owned the positions; 0 where there is none."""
        ...

    def own(self, generation: int) -> None:
        """Write a new generation into all positions: end the sessions of former holders, drop all that they staged, and
        no unit of a former generation commits from here on. Idempotent; positions and staging of a later generation
        stay as they are.
        """
        ...

    def routing_digest(self) -> str:
        """The digest of the routing that the positions were made for; empty where there are none."""
        ...

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        """Make one position for each channel of a routing, for a generation, at the seqno at which all of them are now
        (NO_SEQNO at first), which is returned. No-op where they were made for this routing. `PlanError` unless all
        positions are equal.
        """
        ...

    def take(
        self,
        channel: int | None,
        *,
        generation: int,
        token: str,
        routing_digest: str | None = None,
        group: int | None = None,
    ) -> Position:
        """Become the one who may move this channel: end the sessions of former holders, drop their staging, write
        generation and token. `OwnershipLost` when the generation is over, or the pipeline's routing is not the one
        that the caller goes by (None: not compared). Channel None: all channels, as a serial
        unit needs; the position returned is then that of the channel furthest behind.

        Staging of groups (`GroupPart`) is no single channel's: who takes one leaves it and its stagers alone. Who
        takes all channels ends and drops it too, but for that of `group`, which the caller is to commit, and of those
        behind it, which are staged ahead. Sessions that may prepare a part are ended whichever group it is of.
        """
        ...

    def take_part(self, unit: Unit) -> bool:
        """Become the one who stages a part of a group: end the sessions of its former stagers and drop what they
        staged or prepared. `OwnershipLost` when the generation is over. Says whether the part may be prepared, where
        the unit is to be: not if the group before it is to be committed first, or if this one is being committed.
        """
        ...

    def leave(self) -> None:
        """Have no claim any more: this session is not one that the next `take` ends."""
        ...

    def note_tables(self, unbegun: Sequence[Relation] | None = None) -> None:
        """Note which of its tables have the rows of which of the log's, as far as they are applied, where that outlasts
        their names; and that the tables of these definitions are all the `unbegun` ones, which have had no rows yet, so
        that nothing else may write to them. While no unit is applied.
        """
        ...

    # --- apply ---
    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        """Run the steps in order and move the unit's positions to its end, in one transaction; nothing where they are
        there already. A branch moves its channel's position. A unit of another kind locks all positions, requires
        each at its own `unit.after` and held by `unit.token`, and moves all. Without steps it only moves them (sync).
        A unit of a merge point frees every unique value before it is taken, whatever triggers see of it.

        Of a group, some parts of which were prepared, all become visible or none: first it is decided, in one
        transaction, then they are committed one by one, and the positions move last. `StagingLost` where that cannot
        be: then none is prepared any more. Whoever owns or takes all channels finishes what was decided.
        """
        ...

    def discard(self, token: str) -> None:
        """Drop the staging of a claim."""
        ...

    def cancel(self) -> None:
        """End what this instance's thread waits for at the target: `take`, `take_part` and `commit` then raise a
        transient error. Nothing happens where it does not wait. Callable from any thread, and raises nothing.
        """
        ...

    def close(self) -> None: ...


class TargetConnector(Protocol):
    """Opens the targets of one scheme, and does what no run needs. Made without arguments, and picklable: Spark's
    workers probe with it. Errors: `Unavailable`, `ConfigurationError`.
    """

    def open(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None = None
    ) -> Target:
        """A target for one thread; connects when first used. `relations`: the log's. `ledger`: names the database of a
        ledger elsewhere, which the target keeps beside its positions: with another one, or with none, they can be
        neither owned nor laid out any more (`ConfigurationError`).
        """
        ...

    def open_with_ledger(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations
    ) -> tuple[Target, Ledger] | None:
        """The same, and the pipeline's ledger in the target's own database: both on one session, so that what one does
        inside a transaction of the other is part of it. None where the target can hold no ledger.
        """
        ...

    def takes_changes(self, endpoint: Endpoint) -> bool:
        """True if the loader is to get every change of a unit, as a feed needs them; False: what the net change of each
        key is made of.
        """
        ...

    def loader(
        self, endpoint: Endpoint, unit: Unit, relations: Sequence[Relation], *, commit_times: CommitTimes | None = None
    ) -> Loader:
        """The loader that stages a unit's rows in Spark's workers. `relations`: those that the rows may belong to.
        `commit_times`: of the unit's transactions, where the target takes every change. Connects nowhere by itself.
        """
        ...

    def probe(self, endpoint: Endpoint) -> None:
        """Reach the target from here, and leave. Errors: `Unavailable`, in the target's own words."""
        ...

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        """The commands that do by hand what `Target.drop` does."""
        ...

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        """The id of the log of each pipeline that applies to a database, by the pipeline's name; none where the role
        may not look.
        """
        ...

"""Epochs: consecutive whole transactions applied as one unit of work, as the planner made them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.partition.routing import Routing


class EpochKind(StrEnum):
    """The way an epoch is applied: by the channels side by side, or by one lane while everything else stands still."""

    PARALLEL = "parallel"
    SERIAL = "serial"


class Reason(StrEnum):
    """The reason why an epoch was closed, or why it is serial."""

    CHANGES = "changes"
    BYTES = "bytes"
    TRANSACTIONS = "transactions"
    TIME = "time"
    END = "end"
    BEFORE_CRITICAL = "before critical"
    TRUNCATE = "truncate"
    DDL = "ddl"
    RELATION = "relation"
    KEY_UNSENT = "key unsent"
    SHARD_UNKNOWN = "shard unknown"
    SHARD_CRITICAL = "critical shard"
    SHARDS = "several shards"
    DENSE_BARRIERS = "dense barriers"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        """Plans of an earlier release say it in another word."""
        return cls.DENSE_BARRIERS if value == "dense fences" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """[first_seqno, last_seqno] of the log; `rows` and `bytes_` by channel, for all channels."""

    number: int
    first_seqno: int
    last_seqno: int
    kind: EpochKind
    reason: Reason
    rows: tuple[int, ...]
    bytes_: tuple[int, ...]
    end_offset: Offset | None = None
    """The source's offset at which its last transaction ends; None in a plan of an earlier release."""
    inserts: tuple[int, ...] | None = None
    """How many of `rows` are insertions; None in a plan of an earlier release."""
    end_time: datetime | None = None
    """When its last transaction was committed at the source; None in a plan of an earlier release."""

    @property
    def is_insertions(self) -> bool:
        """True if all its rows are known to be insertions."""
        return self.inserts == self.rows

    @property
    def row_count(self) -> int:
        """Rows of all its branches."""
        return sum(self.rows)


@dataclass(frozen=True, slots=True)
class Branch:
    """A unit of one channel's rows, which moves that channel's position. `is_direct`: all of them are insertions, which
    may go straight into their tables where they are loaded, and be committed there with the position.
    """

    channel: int
    is_direct: bool = False


@dataclass(frozen=True, slots=True)
class Merging:
    """The unit of a merge point: every channel's rows, each channel's behind its own position. `after_seqnos`: these
    positions, by channel.
    """

    after_seqnos: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serial:
    """A unit of all rows of transactions that run alone, before which all channels are at one seqno. `first_fragno` and
    `last_fragno`, inclusive: where it is a part of one transaction.
    """

    first_fragno: int | None = None
    last_fragno: int | None = None


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A unit that is staged for a group of epochs, and becomes visible with the rest of the group: the rows of one
    channel, or of all. It moves no position itself. `group`: number of the group's last epoch. `prepares`: it may be
    applied and prepared where it is loaded, as a branch of the group's commit, instead of being staged.
    """

    group: int
    channel: int | None
    prepares: bool = False


UnitKind: TypeAlias = Branch | Merging | Serial | GroupPart
"""The rows that a unit takes, and the positions that it moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit of a lane's work: rows of (after_seqno, last_seqno], as `kind` says. `after_seqno` is the least of the
    positions that it moves. `token` names the claim that its staging belongs to.
    """

    pipeline: str
    generation: int
    kind: UnitKind
    channels: int
    token: str
    after_seqno: int
    last_seqno: int
    row_count: int
    routing: Routing | None = None
    """Tells the rows of a channel. None: by key."""
    epoch: int | None = None
    """Number of the planned epoch that it ends with, or, of a serial one, in: it is committed only while the target has
    that epoch in its plan. None: not compared.
    """
    origin: CommitOrigin | None = None
    """The origin that its commit is to carry. None: nothing of the source is in it."""

    @property
    def channel(self) -> int | None:
        """The one channel whose rows it takes; None where it takes those of all."""
        return self.kind.channel if isinstance(self.kind, Branch | GroupPart) else None

    @property
    def group(self) -> int | None:
        """Number of the group that it is staged for, whose staging outlives the claim; None: it does not."""
        return self.kind.group if isinstance(self.kind, GroupPart) else None

    @property
    def prepares(self) -> bool:
        """True if it may be prepared as a branch of its group's commit."""
        return isinstance(self.kind, GroupPart) and self.kind.prepares

    @property
    def is_direct(self) -> bool:
        """True if it may be committed where it is loaded."""
        return isinstance(self.kind, Branch) and self.kind.is_direct

    @property
    def moved(self) -> range:
        """The channels whose positions its commit moves."""
        if isinstance(self.kind, GroupPart):
            return range(0)
        if isinstance(self.kind, Branch):
            return range(self.kind.channel, self.kind.channel + 1)
        return range(self.channels)

    def staged(self) -> Unit:
        """The same unit, which is only staged where it is loaded."""
        return replace(self, kind=Branch(self.kind.channel)) if isinstance(self.kind, Branch) else self

    def after(self, channel: int) -> int:
        """The seqno that a channel has committed before the unit."""
        return self.kind.after_seqnos[channel] if isinstance(self.kind, Merging) else self.after_seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """Net changes of one table by one acknowledged Spark attempt, in a staging table of their own. `is_prepared`: of
    all tables, applied, and prepared as a branch of a group's commit. `is_committed`: of all tables, and committed with
    the unit's position.
    """

    relation_id: int
    staging: str
    """The place where it waits, in the target's own words."""
    inserts: int
    updates: int
    deletes: int
    has_unsent: bool
    is_prepared: bool = False
    is_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedUnit:
    """A unit whose net changes wait in the target, outside any transaction."""

    unit: Unit
    tables: tuple[StagedTable, ...]
    row_count: int
    """Log rows of the unit that Spark saw after its filters on seqno and channel; must equal `unit.row_count`."""
    seconds: float

    @property
    def is_committed(self) -> bool:
        """True if it was committed where it was loaded."""
        return any(table.is_committed for table in self.tables)

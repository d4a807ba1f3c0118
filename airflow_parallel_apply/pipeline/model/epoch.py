"""Epochs: consecutive whole transactions applied as one unit of work, as the planner made them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_parallel_apply.pipeline.partition.routing import Routing


class EpochKind(StrEnum):
    """Whether the channels apply it side by side, or one lane alone while everything else stands still."""

    PARALLEL = "parallel"
    SERIAL = "serial"


class Reason(StrEnum):
    """Why an epoch was closed, or why it is serial."""

    CHANGES = "changes"
    BYTES = "bytes"
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

    @property
    def row_count(self) -> int:
        """Rows of all its branches."""
        return sum(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a lane works on: rows of (after_seqno, last_seqno] in some channels.

    `channel` is None for a serial unit, which takes every channel's rows; `first_fragno` and `last_fragno`, inclusive,
    are given where it is a part of one transaction. `after_seqnos`, by channel, is given for the unit of
    a merge point: all channels, from each one's own position; `after_seqno` is then the least of them. `token` names
    the claim; staging that bears another token is nobody's.
    """

    pipeline: str
    generation: int
    channel: int | None
    channels: int
    token: str
    after_seqno: int
    last_seqno: int
    row_count: int
    first_fragno: int | None = None
    last_fragno: int | None = None
    routing: Routing | None = None
    """Which rows are a channel's, in a unit of one channel or of a merge point. None: by key."""
    after_seqnos: tuple[int, ...] | None = None
    epoch: int | None = None
    """Number of the planned epoch that it ends with, or, of a serial one, in: it is committed only while the target has
    that epoch in its plan. None: not compared.
    """

    @property
    def is_merge_point(self) -> bool:
        """Whether it brings channels that stand at different seqnos to one."""
        return self.after_seqnos is not None

    def after(self, channel: int) -> int:
        """The seqno that a channel has committed before the unit."""
        return self.after_seqno if self.after_seqnos is None else self.after_seqnos[channel]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """Net changes of one table by one acknowledged Spark attempt, in a staging table of their own."""

    relation_id: int
    staging: str
    """Where it waits, in the target's own words."""
    inserts: int
    updates: int
    deletes: int
    has_unsent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedUnit:
    """A unit whose net changes wait in the target, outside any transaction."""

    unit: Unit
    tables: tuple[StagedTable, ...]
    row_count: int
    """Log rows of the unit that Spark saw after its filters on seqno and channel; must equal `unit.row_count`."""
    seconds: float

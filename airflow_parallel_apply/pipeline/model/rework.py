"""Rework: what was done in vain, and done again in another way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from airflow_parallel_apply.pipeline.errors import (
    BranchesLost,
    Conflict,
    Deadlock,
    DirectRefused,
    OwnershipLost,
    ParallelApplyError,
    RetryableError,
    StagingLost,
)

INCOMPLETE: Final = "staging incomplete"
"""The reason to stage a group by one job again whose channels did not say all that they had staged."""

TAKEN_OVER: Final = "taken over"
"""The reason to go on epoch by epoch where a former claimant had come to it, and knew why."""


class ReworkKind(StrEnum):
    """The way in which work came to be done again."""

    MERGE_POINT = "merge point"
    """All channels drained and committed together, or a group went on epoch by epoch, since one of them met a conflict.
    Known by the seqno at which the channels met: each lies above the one before.
    """
    RESTAGING = "restaging"
    """Rows were reduced and loaded again, by a job for all channels."""
    REPLAY = "replay"
    """Changes that were refused as a set were applied one by one."""
    ROLLBACK = "rollback"
    """The target's transaction came to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rework:
    """One kind of work in vain. `reason`: that of the conflict or error; `table`: None where it is not one table's, or
    the target did not say.
    """

    kind: ReworkKind
    reason: str
    table: str | None

    @classmethod
    def after(cls, kind: ReworkKind, error: ParallelApplyError) -> Rework:
        """The rework that an error caused."""
        return cls(kind=kind, reason=_reason(error), table=error.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReworkCount:
    """How often it happened. `last_seqno`: where the work ended that was done again last."""

    kind: ReworkKind
    reason: str
    table: str | None
    count: int
    last_seqno: int
    last_time: datetime


def _reason(error: ParallelApplyError) -> str:
    match error:
        case Conflict():
            return error.reason
        case Deadlock():
            return "deadlock"
        case DirectRefused():
            return "insertions refused"
        case BranchesLost():
            return "branches rolled back"
        case StagingLost():
            return "staging lost"
        case OwnershipLost():
            return "claim lost"
        case RetryableError():
            return "unavailable"
        case _:
            return "refused"

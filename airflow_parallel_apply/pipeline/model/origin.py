"""The origin of a commit: which of the source's transactions it brings a target to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_parallel_apply.pipeline.model.offset import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOrigin:
    """The origin that a commit carries where the target can keep one: whoever reads the target's own stream of changes
    tells by it what was applied from what was written there. `offset`: the source's, behind the last transaction that
    is in the commit. `commit_time`: that transaction's; None of rows that were copied, which no one transaction wrote.
    """

    offset: Offset
    commit_time: datetime | None = None

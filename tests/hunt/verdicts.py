"""The outcomes of a trial: a finding, or counts of what it went through."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.queue.model import QueueError

RED: Final = (ParallelApplyError, QueueError)


class Caught(Exception):
    """A finding: what kind, and what was seen."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind
        self.what = what


@dataclass(kw_only=True)
class Tally:
    """Counts of what a trial went through."""

    green: int = 0
    red: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)


def stem(told: str) -> str:
    """A reason without its names and numbers, for counting."""
    return re.sub(r"\d+", "n", re.sub(r"\[.*|Hint:.*", "", told))[:110].strip()

"""A stretch of time at the source: which transactions a scheduled run is for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_parallel_apply.pipeline.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """[start, end) of commit times by the source's clock, both with a time zone; never empty.

    Errors: `ConfigurationError` for one that is empty or without a time zone.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None or self.start >= self.end:
            raise ConfigurationError(f"{self} is no interval", hint="It needs time zones, and a start before its end.")

    def __str__(self) -> str:
        return f"[{moment(self.start)}, {moment(self.end)})"


def moment(time: datetime) -> str:
    """A time as errors and commands show it: ISO 8601, no more digits than it has."""
    return time.isoformat()

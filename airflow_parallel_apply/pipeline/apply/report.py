"""The report of a lane: its acknowledgement in XCom, and the numbers that the demo and benchmarks show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from airflow_parallel_apply.pipeline.model.rework import Rework


@dataclass(slots=True, kw_only=True)
class LaneReport:
    """Counts and seconds of one lane; written by its main thread, `capture` by its capture thread."""

    lane: int
    generation: int
    channels: set[int] = field(default_factory=set)
    units: int = 0
    rows: int = 0
    serial_units: int = 0
    merge_points: int = 0
    groups: int = 0
    """Committed, under epoch consistency."""
    prepared_groups: int = 0
    """Those of them that had branches."""
    restaged_groups: int = 0
    """Jobs that staged again what was staged for a group, or was refused with others."""
    replayed_units: int = 0
    direct_units: int = 0
    """Those of insertions that were committed where they were loaded."""
    captured_rows: int = 0
    retries: int = 0
    rework: dict[Rework, int] = field(default_factory=dict)
    """How often each kind of work was done in vain."""
    stop_seqno: int | None = None
    stop_asked: bool = False
    """Somebody asked for the stop; the run's end did not bring it."""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the block's duration to a phase."""
        began = monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + monotonic() - began

    def note(self, rework: Rework) -> None:
        """Count it."""
        self.rework[rework] = self.rework.get(rework, 0) + 1

    def to_json(self) -> dict[str, Any]:
        """As the lane's XCom carries it."""
        return {
            "lane": self.lane,
            "generation": self.generation,
            "channels": sorted(self.channels),
            "units": self.units,
            "rows": self.rows,
            "serial_units": self.serial_units,
            "merge_points": self.merge_points,
            "groups": self.groups,
            "prepared_groups": self.prepared_groups,
            "restaged_groups": self.restaged_groups,
            "replayed_units": self.replayed_units,
            "direct_units": self.direct_units,
            "captured_rows": self.captured_rows,
            "retries": self.retries,
            "rework": [
                {"kind": found.kind, "reason": found.reason, "table": found.table, "count": count}
                for found, count in self.rework.items()
            ],
            "stop_seqno": self.stop_seqno,
            "stop_asked": self.stop_asked,
            "seconds": {phase: round(spent, 3) for phase, spent in self.seconds.items()},
        }

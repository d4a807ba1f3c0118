"""The metrics of a lane: counters in Airflow's own statistics, whatever they go to (StatsD, OpenTelemetry)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.sdk.observability import stats

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.apply.report import LaneReport

_NAMES: Final = {
    "merge point": "parallel_apply.merge_points",
    "restaging": "parallel_apply.restagings",
    "replay": "parallel_apply.replays",
    "rollback": "parallel_apply.rollbacks",
}


class LaneMetrics:
    """Counts what is new in a lane's report since the last one: units, rows, and work in vain by reason and table."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._told: dict[tuple[str, tuple[str, str]], int] = {}

    def publish(self, report: LaneReport) -> None:
        """Tell it; the same report again says nothing."""
        self._count("parallel_apply.units", report.units, {})
        self._count("parallel_apply.rows", report.rows, {})
        for found, count in report.rework.copy().items():
            # Of a tag's value StatsD takes no spaces.
            tags = {"reason": found.reason.replace(" ", "_"), "table": found.table or ""}
            self._count(_NAMES[found.kind], count, tags)

    def _count(self, name: str, count: int, tags: dict[str, str]) -> None:
        key = name, (tags.get("reason", ""), tags.get("table", ""))
        new = count - self._told.get(key, 0)
        if new > 0:
            self._told[key] = count
            stats.incr(name, new, tags={"pipeline": self._pipeline, **tags})

"""A lane's metrics, through Airflow's own statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.observability import stats

from airflow_parallel_apply.operators.metrics import LaneMetrics
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkKind
from tests.provider.conftest import REPOSITORY
from tests.provider.fakes import FakePipeline
from tests.support.variants import gated

Counted = dict[tuple[str, str], int]


class Backend(NoStatsLogger):  # type: ignore[misc]
    """A receiver of statistics, as a StatsD client or an OpenTelemetry meter is."""

    def __init__(self) -> None:
        self.counted: Counted = {}

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, Any] | None = None) -> None:
        key = stat, ",".join(f"{name}={value}" for name, value in sorted((tags or {}).items()))
        self.counted[key] = self.counted.get(key, 0) + count


@pytest.fixture
def backend() -> Iterator[Backend]:
    found = Backend()
    stats.initialize(factory=lambda: found, export_legacy_names=False)
    yield found
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


def test_each_kind_of_work_in_vain_is_a_counter_by_reason_and_table(backend: Backend) -> None:
    report = LaneReport(lane=0, generation=1)
    metrics = LaneMetrics("shop")
    metrics.publish(report)
    assert backend.counted == {}
    report.units, report.rows = 3, 70
    for kind in ReworkKind:
        report.note(Rework(kind=kind, reason="foreign key", table="public.t"))
    metrics.publish(report)
    metrics.publish(report)
    report.note(Rework(kind=ReworkKind.ROLLBACK, reason="staging lost", table=None))
    report.note(Rework(kind=ReworkKind.ROLLBACK, reason="foreign key", table="public.t"))
    metrics.publish(report)
    of_table = "pipeline=shop,reason=foreign_key,table=public.t"
    assert backend.counted == {
        ("parallel_apply.units", "pipeline=shop"): 3,
        ("parallel_apply.rows", "pipeline=shop"): 70,
        ("parallel_apply.merge_points", of_table): 1,
        ("parallel_apply.restagings", of_table): 1,
        ("parallel_apply.replays", of_table): 1,
        ("parallel_apply.rollbacks", of_table): 2,
        ("parallel_apply.rollbacks", "pipeline=shop,reason=staging_lost,table="): 1,
    }


@gated
@pytest.mark.usefixtures("airflow_home", "connections")
def test_a_run_tells_its_lanes_metrics(
    pipeline: FakePipeline, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = LaneReport(lane=0, generation=7, units=1, rows=20)
    told.note(Rework(kind=ReworkKind.REPLAY, reason="refused", table="public.t"))
    pipeline.during_apply = lambda signals: signals.report(told)
    assert DagBag(str(REPOSITORY / "dags" / "parallel_apply.py")).dags["parallel_apply"].test().state == "success"
    # Two lanes: each has told that much, and ends with 50 rows.
    assert backend.counted[("parallel_apply.rows", "pipeline=parallel_apply")] == 100
    refused = "pipeline=parallel_apply,reason=refused,table=public.t"
    assert backend.counted[("parallel_apply.replays", refused)] == 2

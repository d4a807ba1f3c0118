"""Applications on a standalone cluster: a lane in the driver of each, two workers, one of them lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply.lane import LaneSignals
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.submitted.lane import SubmittedLane
from airflow_parallel_apply.spark.submitted.messages import LaneWork
from tests.support.rig import Rig
from tests.support.spark_cluster import SETTINGS, SparkCluster, eventually

TABLE = "CREATE TABLE item (id int PRIMARY KEY, note text)"
ROWS = "INSERT INTO item SELECT n, 'note ' || n FROM generate_series({first}, {last}) n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.add_worker()
        made.add_worker()
        yield made
    finally:
        made.stop()


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="clustered", log_url=str(tmp_path / "log"), channels=2, epoch_max_changes=500)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both(TABLE)
    made.prepare()
    return made


@dataclass
class Lanes:
    """The lanes of a run as their tasks have them, side by side."""

    rig: Rig
    opened: run.OpenedRun
    cluster: Cluster
    pages: dict[int, str] = field(default_factory=dict)
    units: dict[int, int] = field(default_factory=dict)
    running: dict[int, SubmittedLane] = field(default_factory=dict)

    def lane(self, number: int) -> LaneReport:
        work = LaneWork(
            opened=self.opened, config=self.rig.config, source=self.rig.source, target=self.rig.target, lane=number
        )
        self.running[number] = lane = SubmittedLane(self.cluster, work)
        signals = LaneSignals(
            stop_requested=lambda: False,
            cancelled=lambda: False,
            report=lambda report: self.units.__setitem__(number, report.units),
        )
        return lane.run(signals, lambda url: self.pages.__setitem__(number, url))

    def close(self, reports: list[LaneReport]) -> run.ClosedRun:
        return run.close_run(self.opened, self.rig.config, self.rig.target, [report.to_json() for report in reports])


def opened_lanes(rig: Rig, cluster: SparkCluster) -> Lanes:
    rig.capture("run")
    plan(rig.config, rig.target)
    opened = run.open_run(rig.config, rig.source, rig.target, owner="run", run_id="run")
    return Lanes(rig=rig, opened=opened, cluster=Cluster(master=cluster.master, settings=SETTINGS))


@pytest.mark.timeout(600)
def test_two_lanes_apply_a_history(rig: Rig, cluster: SparkCluster) -> None:
    for first in range(1, 2001, 100):
        rig.write(ROWS.format(first=first, last=first + 99))
    lanes = opened_lanes(rig, cluster)
    with ThreadPoolExecutor(2) as pool:
        reports = [lane.result() for lane in [pool.submit(lanes.lane, number) for number in (0, 1)]]
    closed = lanes.close(reports)
    assert closed.rows == 2000
    assert rig.comparison().equal
    eventually(lambda: not cluster.state()["activeapps"], "the applications end with their lanes")

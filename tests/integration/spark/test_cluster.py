"""Applications on a standalone cluster: a lane in the driver of each, two workers of one core, one of them lost."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_parallel_apply.operators.spark import check_workers
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.signals import LaneSignals
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.endpoint import SparkEndpoint
from airflow_parallel_apply.spark.session import ConnectAccess, release_session
from airflow_parallel_apply.spark.stage import open_stage
from airflow_parallel_apply.spark.submitted.copying import submitted_copier
from airflow_parallel_apply.spark.submitted.lane import SubmittedLane
from airflow_parallel_apply.spark.submitted.looking import cluster_findings
from airflow_parallel_apply.spark.submitted.messages import CopyWork, LaneWork
from tests.support.dags_test import Airflow
from tests.support.queue_service import ServedQueue
from tests.support.rig import Rig, execute
from tests.support.routers import served_logs
from tests.support.spark_cluster import SETTINGS, SparkCluster, command_line, eventually

TABLE = "CREATE TABLE item (id int PRIMARY KEY, note text)"
ROWS = "INSERT INTO item SELECT n, 'note ' || n FROM generate_series({first}, {last}) n"
PASSWORD = "open-sesame-71"

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.add_worker()
        made.add_worker()
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers listen there, and their environment is that of the task."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_TARGET", f"postgresql://u:{PASSWORD}@h/d")
    monkeypatch.setenv("PARALLEL_APPLY_QUEUE", f"grpcs://:{PASSWORD}@h:7411")


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """The servers trust everybody, so any password will do; it has to stay hidden."""
    config = PipelineConfig(
        pipeline="clustered",
        log_url=str(tmp_path / "log"),
        channels=2,
        lanes=2,
        epoch_max_changes=100,
        start=Start.EMPTY,
    )
    secret = [make_conninfo(dsn, password=PASSWORD) for dsn in (source_dsn, target_dsn)]
    made = Rig(config=config, source_dsn=secret[0], target_dsn=secret[1])
    made.both(TABLE)
    return made


@dataclass
class Lanes:
    """The lanes of one run as their tasks have them, side by side."""

    rig: Rig
    opened: run.OpenedRun
    cluster: Cluster
    pages: dict[int, str] = field(default_factory=dict)
    reports: dict[int, LaneReport] = field(default_factory=dict)
    running: dict[int, SubmittedLane] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def lane(self, number: int) -> LaneReport:
        work = LaneWork(
            opened=self.opened,
            config=self.rig.config,
            source=self.rig.source,
            target=self.rig.target,
            queue=self.rig.queue,
            lane=number,
        )
        lane = self.running[number] = SubmittedLane(self.cluster, work)
        signals = LaneSignals(
            stop_requested=self.stop.is_set,
            cancelled=lambda: False,
            report=lambda report: self.reports.__setitem__(number, report),
        )
        return lane.run(signals, lambda url: self.pages.__setitem__(number, url))

    @contextmanager
    def side_by_side(self) -> Iterator[list[Future[LaneReport]]]:
        with ThreadPoolExecutor(2) as pool:
            started = [pool.submit(self.lane, number) for number in (0, 1)]
            try:
                yield started
            except BaseException:
                for lane in self.running.values():
                    lane.cancel()
                raise

    def close(self, reports: list[LaneReport]) -> run.ClosedRun:
        return self.rig.close(self.opened, [report.to_json() for report in reports])

    @property
    def units(self) -> int:
        return sum(report.units for report in self.reports.values())


def opened_lanes(rig: Rig, cluster: SparkCluster, run_id: str = "run") -> Lanes:
    rig.capture(run_id)
    plan(rig.config, rig.target)
    return Lanes(rig=rig, opened=rig.open(run_id), cluster=Cluster(master=cluster.master, settings=SETTINGS))


def committed(rig: Rig) -> int:
    return int(rig.rows("SELECT count(*) FROM item")[0][0])


def everything_said(pages: list[str]) -> str:
    """Read what the applications' pages tell, as their REST interface says it."""
    told = []
    for page in pages:
        applications = json.loads(_read(f"{page}/api/v1/applications"))
        for application in applications:
            base = f"{page}/api/v1/applications/{application['id']}"
            told += [
                _read(f"{base}/{name}")
                for name in ("environment", "jobs", "stages", "allexecutors", "sql?details=true")
            ]
    return "".join(told)


def _uri(dsn: str) -> str:
    told = conninfo_to_dict(dsn)
    return json.dumps(
        {
            "conn_type": "postgres",
            "host": told["host"],
            "port": int(told["port"]),
            "login": told["user"],
            "password": told["password"],
            "schema": told["dbname"],
        }
    )


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=180) as answer:  # noqa: S310
        return str(answer.read().decode())


def arguments() -> str:
    """The arguments of all processes of this machine."""
    return "\n".join(command_line(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def environments() -> str:
    """The environments of the drivers, which know the connections of no other pipeline."""
    told = [
        path.parent
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if "submitted/driver.py" in command_line(int(path.parent.name))
    ]
    assert told
    return "\n".join((process / "environ").read_bytes().decode(errors="replace") for process in told)


@pytest.fixture
def guarded(rig: Rig, tmp_path: Path) -> Iterator[Rig]:
    """Steered by a service that wants a token."""
    served = ServedQueue(tmp_path / "queue", token=PASSWORD)
    yield replace(rig, queue=QueueEndpoint(conn_id="queue", dsn=served.url.replace("//", f"//:{PASSWORD}@")))
    served.stop()


@pytest.mark.long
def test_a_worker_lost_in_the_middle_changes_nothing_and_no_credential_is_seen(
    guarded: Rig, cluster: SparkCluster
) -> None:
    """Two lanes on two cores, then one: whoever has no core gives its channel to the other, which has none to spare."""
    rig = guarded
    rig.prepare()
    for first in range(1, 10_001, 50):
        rig.write(ROWS.format(first=first, last=first + 49))
    rig.write("UPDATE item SET note = note || '!' WHERE id % 3 = 0", "DELETE FROM item WHERE id % 5 = 0")
    lanes = opened_lanes(rig, cluster)
    with lanes.side_by_side() as started:
        eventually(lambda: len(lanes.pages) == 2 and len(cluster.executors()) == 2, "both lanes have an executor")
        eventually(lambda: lanes.units > 0, "something is applied")
        with psycopg.connect(rig.target_dsn) as holding:
            holding.execute("LOCK TABLE item IN EXCLUSIVE MODE")
            seen = everything_said(list(lanes.pages.values())) + arguments() + environments()
            for executor in cluster.executors():
                os.kill(executor, signal.SIGKILL)
            cluster.kill_worker(0)
            assert not any(lane.done() for lane in started)
        reports = [lane.result() for lane in started]
    assert rig.config.pipeline in seen
    assert "CoarseGrainedExecutorBackend" in seen
    assert PASSWORD not in seen
    closed = lanes.close(reports)
    assert closed.rows == 10_000 + 3_333 + 2_000
    assert rig.comparison().equal
    eventually(lambda: not cluster.state()["activeapps"], "the applications end with their lanes")
    cluster.add_worker()


@pytest.mark.long
@pytest.mark.parametrize("shard_by", [(), (("*", "id % 7"),)], ids=["by key", "by shard"])
def test_applications_read_a_log_that_a_router_serves(
    rig: Rig, cluster: SparkCluster, tmp_path: Path, shard_by: tuple[tuple[str, str], ...]
) -> None:
    """Neither driver nor executor sees the log's directory. By shard the router holds the rows as well."""
    with served_logs(tmp_path / "logs", spill=tmp_path / "spill", token=PASSWORD) as url:
        rig = rig.having(
            log_url=f"{url.replace('//', f'//:{PASSWORD}@')}/shop",
            log_directory=str(tmp_path / "logs" / "shop"),
            partitioner="shard" if shard_by else "key",
            shard_by=shard_by,
            channels=3,
        )
        rig.prepare()
        rig.write(*(ROWS.format(first=first, last=first + 199) for first in range(1, 2000, 200)))
        lanes = opened_lanes(rig, cluster)
        lanes.rig = rig.having(log_directory="/nowhere")
        with lanes.side_by_side() as running:
            reports = [lane.result(timeout=600) for lane in running]
        said = arguments()
        assert lanes.close(reports).rows == 2000
        assert rig.comparison().equal
        assert PASSWORD not in said


@pytest.mark.long
def test_a_lane_that_is_killed_takes_its_application_with_it(rig: Rig, cluster: SparkCluster) -> None:
    """Its driver gives back what it holds, so that the next lane need not wait for a lease to end."""
    rig.prepare()
    rig.write(ROWS.format(first=1, last=1000))
    lanes = opened_lanes(rig, cluster)
    with ThreadPoolExecutor(1) as pool:
        lane = pool.submit(lanes.lane, 0)
        eventually(lambda: lanes.pages, "the application runs")
        began = time.monotonic()
        lanes.running[0].cancel()
        assert time.monotonic() - began < 5
        with pytest.raises(ParallelApplyError):
            lane.result(timeout=120)
    eventually(lambda: not cluster.state()["activeapps"], "the application ended")
    assert lanes.close([lanes.lane(1)]).rows == 1000
    assert rig.comparison().equal


@pytest.mark.long
def test_an_initial_copy_runs_on_the_cluster(rig: Rig, cluster: SparkCluster) -> None:
    execute(rig.source_dsn, ROWS.format(first=1, last=3000))
    work = CopyWork(source=rig.source, target=rig.target, log_url=rig.config.log_url)
    on_cluster = Cluster(master=cluster.master, settings=SETTINGS)
    with submitted_copier(on_cluster, work, name="copy", cores=2) as copier:
        copied = rig.having(start=Start.COPY)
        Rig(
            config=copied.config, source_dsn=rig.source_dsn, target_dsn=rig.target_dsn, copier=lambda rig: copier
        ).prepare()
    assert committed(rig) == 3000
    assert rig.comparison().equal


@pytest.mark.long
def test_workers_without_our_python_are_refused_with_what_mends_it(rig: Rig, cluster: SparkCluster) -> None:
    rig.prepare()
    rig.write(ROWS.format(first=1, last=10))
    lanes = opened_lanes(rig, cluster)
    lanes.cluster = Cluster(master=cluster.master, settings={**SETTINGS, "spark.pyspark.python": "/nowhere/python3"})
    with pytest.raises(ConfigurationError, match="/nowhere/python3") as raised:
        lanes.lane(0)
    assert "spark.pyspark.python" in str(raised.value)


@pytest.mark.long
def test_a_check_looks_from_the_executors_of_a_cluster(rig: Rig, cluster: SparkCluster) -> None:
    known = Cluster(master=cluster.master, settings=SETTINGS)
    assert cluster_findings(known, rig.config, rig.target) == ()
    away = Endpoint(conn_id="target", url=make_conninfo(rig.target_dsn, port=1))
    (finding,) = cluster_findings(known, rig.config, away)
    assert "cannot connect to the target" in finding.what


@pytest.mark.long
def test_a_connect_server_on_the_cluster_serves_lanes(rig: Rig, cluster: SparkCluster) -> None:
    """One that somebody else runs, from another directory, with a token: its executors are looked at first."""
    rig.prepare()
    rig.write(ROWS.format(first=1, last=2000), ROWS.format(first=2001, last=2500))
    url = cluster.start_connect_server("a-token-93")
    session_id = check_workers(SparkEndpoint(conn_id="c", url=url), rig.config, rig.target)
    access = ConnectAccess(url=url, session_id=session_id)
    connected = replace(rig, stage=lambda opened: open_stage(access=access, config=rig.config, target=rig.target))
    assert connected.run().rows == 2500
    assert rig.comparison().equal
    with pytest.raises(ConfigurationError, match="token"):
        check_workers(
            SparkEndpoint(conn_id="c", url=url.replace("a-token-93", "another-token")), rig.config, rig.target
        )
    release_session(url, session_id)


@pytest.mark.long
def test_a_dag_run_on_the_cluster_copies_and_applies(rig: Rig, cluster: SparkCluster, tmp_path: Path) -> None:
    """One slot, two lanes: the second begins when the first has stopped every channel."""
    airflow = Airflow(
        tmp_path,
        {
            "parallel_apply_source": _uri(rig.source_dsn),
            "parallel_apply_target": _uri(rig.target_dsn),
            "cluster": cluster.connection(),
        },
    )
    airflow.migrate()
    rig.write(ROWS.format(first=1, last=1000))
    told = {"spark_conn_id": "cluster", "log_url": rig.config.log_url, "channels": 2}
    said = airflow.run(**told)
    assert rig.comparison().equal
    rig.write(ROWS.format(first=1001, last=1500), "TRUNCATE item", ROWS.format(first=1, last=100))
    said += airflow.run(**told)
    assert rig.comparison().equal
    assert committed(rig) == 100
    assert PASSWORD not in said

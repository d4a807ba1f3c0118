"""A run is told before it starts what Spark's executors do not see, reach or have."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark import cloudpickle

from airflow_parallel_apply.operators.spark import check_workers, session_for_lanes
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LeaseBusy, SessionClosed
from airflow_parallel_apply.pipeline.model.finding import Side
from airflow_parallel_apply.pipeline.stream.address import place_of_log
from airflow_parallel_apply.spark import preflight
from airflow_parallel_apply.spark.endpoint import SparkEndpoint
from airflow_parallel_apply.spark.preflight import worker_findings
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import open_session
from tests.support.rig import Rig
from tests.support.routers import served_logs
from tests.support.variants import gated

WITHOUT_US = """
import sys, json
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "airflow_parallel_apply":
            raise ImportError(name)
sys.meta_path.insert(0, Hidden())
from pyspark import cloudpickle
look = cloudpickle.loads(sys.stdin.buffer.read())
(batch,) = look(iter([]))
print(batch.column(0)[0].as_py())
"""


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="seen", log_url=str(tmp_path / "not" / "yet" / "log"), channels=1)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY)")
    return made


@gated
def test_workers_that_see_everything_have_no_finding_before_the_first_run_and_after(
    rig: Rig, spark_server: ServerLease, tmp_path: Path
) -> None:
    assert worker_findings(spark_server.url, rig.config.log_url, rig.target) == ()
    assert list(tmp_path.iterdir()) == []
    rig.having(start=Start.EMPTY).prepare()
    assert worker_findings(spark_server.url, rig.config.log_url, rig.target) == ()


@gated
def test_workers_read_a_log_that_a_router_serves_or_it_is_told(
    rig: Rig, spark_server: ServerLease, tmp_path: Path
) -> None:
    rig.having(start=Start.EMPTY).prepare()
    with served_logs(Path(rig.config.log_url).parent, token="hunter2") as url:
        log_url = url.replace("://", "://:hunter2@") + "/log"
        assert worker_findings(spark_server.url, log_url, rig.target) == ()
        assert preflight.ServedLog(url=log_url, log_id="another").is_here() is False
        (finding,) = preflight._findings(
            {
                "host": "h",
                "python": "p",
                "lacks": [],
                "version": version("airflow-provider-parallel-apply"),
                "log": "no",
            },
            place_of_log(log_url),
            rig.target,
        )
    assert "do not see the log that a router serves at grpc://127.0.0.1:" in finding.what
    assert "hunter2" not in str(finding)


@gated
def test_a_target_that_workers_cannot_reach_is_told_and_refused_without_its_password(
    rig: Rig, spark_server: ServerLease
) -> None:
    away = Endpoint(conn_id="target", url=make_conninfo(rig.target_dsn, port="1", password="hunter2"))
    (finding,) = worker_findings(spark_server.url, rig.config.log_url, away)
    assert "cannot connect to the target 127.0.0.1:1" in finding.what
    assert "hunter2" not in str(finding)
    with pytest.raises(ConfigurationError, match="cannot connect to the target"):
        check_workers(SparkEndpoint(conn_id="spark", url=spark_server.url), rig.config, away)
    check_workers(SparkEndpoint(conn_id="", url=None), rig.config, away)


@pytest.mark.long
def test_a_session_that_no_lane_will_use_is_released(rig: Rig, spark_server: ServerLease) -> None:
    with (
        pytest.raises(LeaseBusy),
        session_for_lanes(SparkEndpoint(conn_id="spark", url=spark_server.url), rig.config, rig.target) as session_id,
    ):
        raise LeaseBusy("another run owns the pipeline")
    with pytest.raises(SessionClosed):
        open_session(spark_server.url, session_id)


@gated
def test_a_log_that_workers_do_not_see_is_told(
    rig: Rig, spark_server: ServerLease, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    look = preflight._look

    def elsewhere(probing: bytes, path: str, *rest: object) -> object:
        return look(probing, str(tmp_path / "elsewhere"), *rest)

    monkeypatch.setattr(preflight, "_look", elsewhere)
    checked = check_pipeline(
        rig.config,
        rig.source,
        rig.target,
        elsewhere=lambda: worker_findings(spark_server.url, rig.config.log_url, rig.target),
    )
    (finding,) = checked.findings
    assert finding.side is Side.SPARK
    assert "do not see the log's directory" in finding.what


@gated
def test_a_worker_without_this_package_can_still_say_so(target_dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    file.write_text("log")
    look = preflight._look(b"", str(file), b"log", "airflow-provider-that-nobody-installed", "1", ("pyarrow",))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_US], input=cloudpickle.dumps(look), capture_output=True, check=True
    )
    report = json.loads(done.stdout)
    assert (report["log"], report["lacks"]) == ("same", ["airflow-provider-that-nobody-installed"])
    (finding,) = preflight._findings(report, file, Endpoint(conn_id="t", url=target_dsn))
    assert "lacks airflow-provider-that-nobody-installed" in finding.what
    assert finding.fix[0].startswith(f"{sys.executable} -m pip install")
    (other,) = preflight._findings({**report, "lacks": [], "version": "0.0.1"}, file, Endpoint(conn_id="t", url=""))
    assert "have airflow-provider-parallel-apply 0.0.1" in other.what


@pytest.mark.long
def test_a_spark_that_is_away_is_a_finding(rig: Rig) -> None:
    checked = check_pipeline(
        rig.config,
        rig.source,
        rig.target,
        elsewhere=lambda: worker_findings("sc://127.0.0.1:1", rig.config.log_url, rig.target),
    )
    (finding,) = checked.findings
    assert finding.side is Side.SPARK

"""The DAG under a real scheduler with one slot: runs, a clear, a stop from the XCom editor, a lane marked as failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.status import PipelineStatus, read_status
from airflow_parallel_apply.spark.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.spark.server import ServerLease
from tests.support.rig import execute

REPOSITORY = Path(__file__).parents[2]
DAG = "parallel_apply"
DATABASE = "in_airflow"
TIMEOUT = timedelta(minutes=3)

TABLE = "CREATE TABLE item (id bigint PRIMARY KEY, note text)"
ROWS = """
DO $$ BEGIN
    FOR number IN {first}..{last} LOOP INSERT INTO item VALUES (number, 'note ' || number); COMMIT; END LOOP;
END $$
"""


class Pipeline:
    """A pipeline of the running Airflow, between two databases of its own."""

    def __init__(self, airflow: AirflowServices, sides: tuple[str, str], log_url: str) -> None:
        self.airflow = airflow
        self.source_dsn, self.target_dsn = sides
        for dsn in sides:
            execute(dsn, TABLE)
        self.conf = {"log_url": log_url, "channels": 2}

    def trigger(self, **more: Any) -> str:
        return self.airflow.client.trigger(DAG, {**self.conf, **more})

    def wait(self, run_id: str) -> str:
        return self.airflow.client.wait_for_run(DAG, run_id, timeout=TIMEOUT)

    def run(self, **more: Any) -> str:
        """Run it green; the run's id."""
        run_id = self.trigger(**more)
        assert self.wait(run_id) == "success", self.states(run_id)
        return run_id

    def write(self, first: int, last: int) -> None:
        """One row a transaction."""
        execute(self.source_dsn, ROWS.format(first=first, last=last))

    def states(self, run_id: str) -> dict[str, str | None]:
        found = self.airflow.client.task_instances(DAG, run_id)
        return {
            task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": task.state for task in found
        }

    def wait_until(self, run_id: str, condition: Callable[[dict[str, str | None]], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while not condition(self.states(run_id)):
            assert time.monotonic() < deadline, self.states(run_id)
            time.sleep(0.1)

    @property
    def status(self) -> PipelineStatus:
        return read_status(self.target, DAG)

    @property
    def target(self) -> Endpoint:
        return Endpoint(conn_id="target", dsn=self.target_dsn)

    @property
    def equal(self) -> bool:
        source = Endpoint(conn_id="source", dsn=self.source_dsn)
        return compare(source, self.target, TablePatterns()).equal


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory,
    spark_directory: Path,
    spark_server: ServerLease,
    source_server: PostgresServer,
    target_server: PostgresServer,
) -> Iterator[AirflowServices]:
    options = AirflowOptions(
        home=tmp_path_factory.mktemp("airflow") / "home",
        dags=REPOSITORY / "dags",
        connections={
            "parallel_apply_source": source_server.uri(DATABASE),
            "parallel_apply_target": target_server.uri(DATABASE),
        },
        environment={RUNTIME_DIR_VARIABLE: str(spark_directory)},
        parallelism=1,
    )
    with AirflowServices(options) as running:
        running.wait_for_dag(DAG)
        yield running


@pytest.fixture(scope="module")
def pipeline(
    airflow: AirflowServices,
    source_server: PostgresServer,
    target_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Pipeline:
    """One for all tests, which each write rows of their own and leave both sides equal."""
    sides = (source_server.create_database(DATABASE), target_server.create_database(DATABASE))
    made = Pipeline(airflow, sides, str(tmp_path_factory.mktemp("log")))
    made.run()
    return made


def test_a_cleared_run_changes_nothing_while_the_source_goes_on(pipeline: Pipeline) -> None:
    pipeline.write(1, 300)
    run_id = pipeline.run()
    assert pipeline.equal
    assert pipeline.states(run_id)["apply[1]"] == "success"
    reached = [channel.seqno for channel in pipeline.status.channels]
    assert len(set(reached)) == 1

    pipeline.write(301, 350)
    pipeline.airflow.client.clear(DAG, run_id)
    assert pipeline.wait(run_id) == "success"
    assert [channel.seqno for channel in pipeline.status.channels] == reached
    assert not pipeline.equal

    pipeline.run()
    assert pipeline.equal


def test_a_stop_from_the_xcom_editor_stops_all_channels_at_one_seqno(pipeline: Pipeline) -> None:
    pipeline.write(1001, 4000)
    run_id = pipeline.trigger(epoch_max_changes=50)
    pipeline.wait_until(run_id, lambda states: states.get("open") == "success")
    pipeline.airflow.client.set_xcom(DAG, run_id, "open", "stop_marker", {"stop": True})
    assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
    closed = pipeline.airflow.client.xcom(DAG, run_id, "close", "coordinator_state")
    assert (closed["phase"], closed["stopped_early"]) == ("stopped", True)
    assert {channel.seqno for channel in pipeline.status.channels} == {closed["stop_seqno"]}
    assert not pipeline.equal

    pipeline.run()
    assert pipeline.equal


def test_a_lane_marked_as_failed_ends_and_others_cover_it(pipeline: Pipeline) -> None:
    pipeline.write(5001, 7000)
    run_id = pipeline.trigger(epoch_max_changes=100)
    client = pipeline.airflow.client
    pipeline.wait_until(run_id, lambda _: client.xcom(DAG, run_id, "apply", "spark_ui", map_index=0) is not None)
    client.mark(DAG, run_id, "apply", "failed", map_index=0)
    assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
    assert pipeline.states(run_id)["apply[0]"] == "failed"
    assert pipeline.equal

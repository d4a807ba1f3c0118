"""The DAG under a real scheduler with one slot: runs, a clear, a stop from the XCom editor, a lane marked as failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.spark.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.spark.server import ServerLease
from tests.support.airflow_pipeline import DAG, DAGS, AirflowPipeline

DATABASE = "in_airflow"


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
        dags=DAGS,
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
) -> AirflowPipeline:
    """One for all tests, which each write rows of their own and leave both sides equal."""
    sides = (source_server.create_database(DATABASE), target_server.create_database(DATABASE))
    made = AirflowPipeline(airflow, sides, str(tmp_path_factory.mktemp("log")), name=DATABASE)
    made.run()
    return made


def test_a_cleared_run_changes_nothing_while_the_source_goes_on(pipeline: AirflowPipeline) -> None:
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


def test_a_stop_from_the_xcom_editor_stops_all_channels_at_one_seqno(pipeline: AirflowPipeline) -> None:
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


@pytest.mark.long
def test_a_stop_by_the_command_is_seen_in_xcom_too(pipeline: AirflowPipeline) -> None:
    pipeline.write(8001, 10000)
    run_id = pipeline.trigger(epoch_max_changes=50)
    pipeline.wait_until(run_id, lambda states: "running" in (states.get("apply[0]"), states.get("apply[1]")))
    asked = CliRunner().invoke(
        app, ["stop", "--pipeline", pipeline.name, "--target", pipeline.target_dsn, "--wait", "120"]
    )
    assert asked.exit_code == 0, asked.output
    assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
    closed = pipeline.airflow.client.xcom(DAG, run_id, "close", "coordinator_state")
    marker = pipeline.airflow.client.xcom(DAG, run_id, "open", "stop_marker")
    assert marker == {"stop": True, "seqno": closed["stop_seqno"]}

    pipeline.run()
    assert pipeline.equal


def test_a_lane_marked_as_failed_ends_and_others_cover_it(pipeline: AirflowPipeline) -> None:
    pipeline.write(5001, 7000)
    run_id = pipeline.trigger(epoch_max_changes=100)
    client = pipeline.airflow.client
    pipeline.wait_until(run_id, lambda _: client.xcom(DAG, run_id, "apply", "spark_ui", map_index=0) is not None)
    client.mark(DAG, run_id, "apply", "failed", map_index=0)
    assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
    assert pipeline.states(run_id)["apply[0]"] == "failed"
    assert pipeline.equal

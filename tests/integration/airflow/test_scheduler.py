"""The DAG under a real scheduler with one slot: runs, a clear, a stop from the XCom editor, a lane marked as failed,
and processes killed at random moments (`CRASH_SEED` repeats the victims and delays).
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.spark.server import stop_server
from tests.crash.scene import spark_processes
from tests.support.airflow_pipeline import DAG, DAGS, AirflowPipeline
from tests.support.variants import gated

DATABASE: Final = "in_airflow"
SEED: Final = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
MOMENTS: Final = 3
ROWS: Final = 1500
LONGEST_DELAY_SECONDS: Final = 6.0

_TASK_PROCESS: Final = re.compile(r"airflow worker -- [0-9a-f]{8}-[0-9a-f-]{27}")


class Victim(StrEnum):
    """The process that is killed."""

    TASK = "a task's process"
    SCHEDULER = "the scheduler"
    SPARK = "the Spark server"
    WORKER = "a Python worker of Spark"
    TARGET = "the target"


@pytest.fixture(scope="module")
def own_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a Spark server that lanes start when they need it, and that may be killed."""
    directory = tmp_path_factory.mktemp("spark")
    yield directory
    stop_server(directory=directory)


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory,
    own_spark: Path,
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
        environment={RUNTIME_DIR_VARIABLE: str(own_spark)},
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
    made.prepare()
    return made


@gated
def test_a_cleared_run_changes_nothing_while_the_source_goes_on(pipeline: AirflowPipeline) -> None:
    pipeline.write(1, 300)
    run_id = pipeline.run()
    assert pipeline.equal
    assert pipeline.states(run_id)["apply[1]"] == "success"
    assert not pipeline.retried(run_id)
    reached = [channel.seqno for channel in pipeline.status.channels]
    assert len(set(reached)) == 1

    pipeline.write(301, 350)
    pipeline.airflow.client.clear(DAG, run_id)
    assert pipeline.wait(run_id) == "success"
    assert [channel.seqno for channel in pipeline.status.channels] == reached
    assert not pipeline.equal


@gated
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


@gated
def test_a_lane_marked_as_failed_ends_and_others_cover_it(pipeline: AirflowPipeline) -> None:
    pipeline.write(5001, 7000)
    run_id = pipeline.trigger(epoch_max_changes=100)
    client = pipeline.airflow.client
    pipeline.wait_until(run_id, lambda _: client.xcom(DAG, run_id, "apply", "spark_ui", map_index=0) is not None)
    client.mark(DAG, run_id, "apply", "failed", map_index=0)
    assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
    assert pipeline.states(run_id)["apply[0]"] == "failed"
    assert pipeline.equal


@pytest.mark.long
def test_a_task_that_is_marked_as_success_by_hand_makes_no_run_green_that_is_not_equal(
    pipeline: AirflowPipeline,
) -> None:
    client = pipeline.airflow.client
    pipeline.write(12001, 12300)
    captured = pipeline.trigger()
    pipeline.wait_until(captured, lambda states: states.get("capture") == "running")
    client.mark(DAG, captured, "capture", "success")
    # What it had left to do is open's and the lanes'.
    assert pipeline.wait(captured) == "success", pipeline.states(captured)
    assert pipeline.equal

    pipeline.write(12301, 12600)
    opened = pipeline.trigger()
    pipeline.wait_until(opened, lambda states: states.get("open") == "running")
    client.mark(DAG, opened, "open", "success")
    assert pipeline.wait(opened) == "failed", pipeline.states(opened)
    assert "lear open with everything downstream" in client.xcom(DAG, opened, "close", "error")
    client.clear_tasks(DAG, opened, ["open"], downstream=True)
    assert pipeline.wait(opened) == "success", pipeline.states(opened)
    assert pipeline.equal


@pytest.mark.long
def test_open_cleared_alone_leaves_the_run_green_and_equal_or_red(pipeline: AirflowPipeline) -> None:
    """Green where the lanes of before have ended first."""
    client = pipeline.airflow.client
    pipeline.write(13001, 16000)
    run_id = pipeline.trigger(epoch_max_changes=50)
    pipeline.wait_until(run_id, lambda states: states.get("apply[0]") == "running")
    client.clear_tasks(DAG, run_id, ["open"])
    assert pipeline.wait(run_id) == "failed" or pipeline.equal, pipeline.states(run_id)
    client.clear_tasks(DAG, run_id, ["open"], downstream=True)
    assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
    assert pipeline.equal


@gated
@pytest.mark.timeout(900)
def test_three_random_moments(
    pipeline: AirflowPipeline,
    target_server: PostgresServer,
    own_spark: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dice = random.Random(SEED)
    victims = [Victim.TASK, *dice.sample([victim for victim in Victim if victim is not Victim.TASK], MOMENTS - 1)]
    with capsys.disabled():
        print(f"\nCRASH_SEED={SEED}: {', '.join(victims)}", flush=True)
    for number, victim in enumerate(victims):
        first = 20_001 + number * ROWS
        pipeline.write(first, first + ROWS - 1)
        run_id = pipeline.trigger(epoch_max_changes=200)
        pipeline.wait_until(run_id, lambda states: states.get("capture") is not None)
        threading.Event().wait(dice.uniform(0, LONGEST_DELAY_SECONDS))
        _kill(victim, pipeline.airflow, target_server, own_spark, dice)
        if pipeline.wait(run_id) != "success":
            pipeline.airflow.client.clear(DAG, run_id)
            assert pipeline.wait(run_id) == "success", pipeline.states(run_id)
        assert pipeline.equal, f"after the loss of {victim}"
        assert len({channel.seqno for channel in pipeline.status.channels}) == 1


def _kill(victim: Victim, airflow: AirflowServices, target: PostgresServer, spark: Path, dice: random.Random) -> None:
    match victim:
        case Victim.TASK:
            _end(dice.choice(_tasks(airflow) or [0]))
        case Victim.SCHEDULER:
            airflow.kill("scheduler")
            airflow.restart("scheduler")
        case Victim.SPARK:
            _end(spark_processes(spark)[0])
        case Victim.WORKER:
            _end(dice.choice(spark_processes(spark)[1] or [0]))
        case Victim.TARGET:
            target.kill()
            target.start()


def _tasks(airflow: AirflowServices) -> list[int]:
    """The processes of the tasks that run now, whatever they do; none between two tasks."""
    return sorted(process.pid for process in airflow.processes() if _TASK_PROCESS.search(process.command))


def _end(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

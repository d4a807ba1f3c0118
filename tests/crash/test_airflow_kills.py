"""A process of a running pipeline is killed at a random moment: after a clear, where one is needed, all is equal.

`CRASH_SEED` repeats the sequence of victims and delays.
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

import pytest

from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.spark.layout import RUNTIME_DIR_VARIABLE
from tests.crash.conftest import WarmSpark
from tests.crash.scene import spark_processes
from tests.support.airflow_pipeline import DAG, DAGS, AirflowPipeline

DATABASE = "killed_in_airflow"
SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
MOMENTS = 3
ROWS = 1500
LONGEST_DELAY_SECONDS = 6.0

_TASK_PROCESS = re.compile(r"airflow worker -- [0-9a-f]{8}-[0-9a-f-]{27}")


class Victim(StrEnum):
    """Who is killed."""

    TASK = "a task's process"
    SCHEDULER = "the scheduler"
    SPARK = "the Spark server"
    WORKER = "a Python worker of Spark"
    TARGET = "the target"


@pytest.fixture
def pipeline(
    durable_target: PostgresServer,
    source_server: PostgresServer,
    warm_spark: WarmSpark,
    tmp_path: Path,
) -> Iterator[AirflowPipeline]:
    sides = (source_server.create_database(DATABASE), durable_target.create_database(DATABASE))
    options = AirflowOptions(
        home=tmp_path / "home",
        dags=DAGS,
        connections={
            "parallel_apply_source": source_server.uri(DATABASE),
            "parallel_apply_target": durable_target.uri(DATABASE),
        },
        environment={RUNTIME_DIR_VARIABLE: str(warm_spark.directory)},
        parallelism=3,
    )
    with AirflowServices(options) as running:
        running.wait_for_dag(DAG)
        yield AirflowPipeline(running, sides, str(tmp_path / "log"), name=DATABASE)


@pytest.mark.timeout(900)
def test_three_random_moments_through_airflow(
    pipeline: AirflowPipeline,
    durable_target: PostgresServer,
    warm_spark: WarmSpark,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dice = random.Random(SEED)
    victims = [Victim.TASK, *dice.sample([victim for victim in Victim if victim is not Victim.TASK], MOMENTS - 1)]
    with capsys.disabled():
        print(f"\nCRASH_SEED={SEED}: {', '.join(victims)}", flush=True)
    pipeline.run()
    for number, victim in enumerate(victims):
        first = 1 + number * ROWS
        pipeline.write(first, first + ROWS - 1)
        run_id = pipeline.trigger(epoch_max_changes=50)
        pipeline.wait_until(run_id, lambda states: states.get("capture") is not None)
        threading.Event().wait(dice.uniform(0, LONGEST_DELAY_SECONDS))
        _kill(victim, pipeline.airflow, durable_target, warm_spark.directory, dice)
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
    """Of the tasks that run now, whatever they do; none between two tasks."""
    return sorted(process.pid for process in airflow.processes() if _TASK_PROCESS.search(process.command))


def _end(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

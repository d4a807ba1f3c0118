"""A pipeline of a running Airflow, between two databases of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow_parallel_apply.demo.airflow import AirflowServices
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus, read_status
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.run import prepare
from tests.support.rig import execute

DAGS: Final = Path(__file__).parents[2] / "dags"
DAG: Final = "parallel_apply"
TIMEOUT: Final = timedelta(minutes=6)

_TABLE: Final = "CREATE TABLE item (id bigint PRIMARY KEY, note text)"
_ROWS: Final = """
DO $$ BEGIN
    FOR number IN {first}..{last} LOOP INSERT INTO item VALUES (number, 'note ' || number); COMMIT; END LOOP;
END $$
"""


class AirflowPipeline:
    """Runs of the DAG `parallel_apply`, which this triggers, watches and compares."""

    def __init__(self, airflow: AirflowServices, sides: tuple[str, str], log_url: str, *, name: str) -> None:
        """`name`: the pipeline's, which no other test may use on the same servers."""
        self.airflow = airflow
        self.name = name
        self.source_dsn, self.target_dsn = sides
        for dsn in sides:
            execute(dsn, _TABLE)
        self.conf: dict[str, Any] = {"pipeline": name, "log_url": log_url, "channels": 2, "start": "empty"}

    def prepare(self) -> None:
        """Do what else the first run does, so that rows may be written before it."""
        config = PipelineConfig(
            pipeline=self.name, log_url=self.conf["log_url"], channels=self.conf["channels"], start=Start.EMPTY
        )
        prepare(config, self.source, self.target)

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
        execute(self.source_dsn, _ROWS.format(first=first, last=last))

    def states(self, run_id: str) -> dict[str, str | None]:
        found = self.airflow.client.task_instances(DAG, run_id)
        return {
            task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": task.state for task in found
        }

    def retried(self, run_id: str) -> set[str]:
        """Tasks that needed more than one try."""
        return {task.task_id for task in self.airflow.client.task_instances(DAG, run_id) if task.try_number > 1}

    def wait_until(self, run_id: str, condition: Callable[[dict[str, str | None]], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while not condition(self.states(run_id)):
            assert time.monotonic() < deadline, self.states(run_id)
            time.sleep(0.1)

    @property
    def status(self) -> PipelineStatus:
        return read_status(self.target, self.name)

    @property
    def target(self) -> Endpoint:
        return Endpoint(conn_id="target", url=self.target_dsn)

    @property
    def source(self) -> Endpoint:
        return Endpoint(conn_id="source", url=self.source_dsn)

    @property
    def equal(self) -> bool:
        return compare(self.source, self.target, TablePatterns()).equal

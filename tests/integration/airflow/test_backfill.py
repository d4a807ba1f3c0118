"""`airflow backfill create` under a real scheduler with its metadata on PostgreSQL, runs side by side.

`BACKFILL_INTERVALS` says how many intervals: a day of hours is 24, which takes many minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.rig import Rig, execute

REPOSITORY: Final = Path(__file__).parents[3]
DAGS: Final = Path(__file__).with_name("backfill_dags")
NAMES: Final = ("forwards", "backwards", "gap")
INTERVALS: Final = int(os.environ.get("BACKFILL_INTERVALS") or 2)
GAP: Final = 2
"""Intervals that are left out."""
SECOND: Final = timedelta(seconds=1)
TIMEOUT: Final = max(timedelta(minutes=30), INTERVALS * timedelta(minutes=3))
"""The time for one backfill: six task processes for each interval, three at a time, a minute each on a busy machine."""

TABLE: Final = "CREATE TABLE item (id bigint PRIMARY KEY, committed timestamptz)"


class Scene:
    """An Airflow, and a pipeline by name from one source to a target of its own each."""

    def __init__(self, airflow: AirflowServices, rigs: dict[str, Rig], first: datetime) -> None:
        self.airflow = airflow
        self.rigs = rigs
        self.first = first
        """Start of the first interval; the history fills it and those behind it."""

    def backfill(self, dag_id: str, *more: str, first: int = 0, intervals: int = INTERVALS) -> None:
        """Run it to its end."""
        start = self.first + first * SECOND
        self.run_airflow(
            "backfill",
            "create",
            "--dag-id",
            dag_id,
            "--from-date",
            start.isoformat(),
            "--to-date",
            (start + (intervals - 1) * SECOND).isoformat(),
            *more,
        )
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while self.metadata("SELECT count(*) FROM backfill WHERE completed_at IS NULL") != [(0,)]:
            assert time.monotonic() < deadline, self.runs(dag_id)
            time.sleep(0.5)

    def run_airflow(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.airflow.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def runs(self, dag_id: str) -> list[str]:
        """Their states, by interval."""
        return [
            state
            for (state,) in self.metadata("SELECT state FROM dag_run WHERE dag_id = %s ORDER BY logical_date", dag_id)
        ]

    def metadata(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        dsn = self.airflow.options.settings["database"]["sql_alchemy_conn"].replace("+psycopg2", "")
        with psycopg.connect(dsn) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def seqnos(self, dag_id: str) -> set[int]:
        return {channel.seqno for channel in read_status(self.rigs[dag_id].target, dag_id).channels}

    def applied(self, dag_id: str) -> int:
        ((count,),) = self.rigs[dag_id].rows("SELECT count(*) FROM item")
        return int(count)

    def committed(self, dag_id: str, intervals: int) -> int:
        """Transactions, one for each row, that the source committed in the first intervals."""
        end = self.first + intervals * SECOND
        log = open_reader(self.rigs[dag_id].config.log_url)
        times = log.transactions(-1, log.state().last_seqno).column("commit_time").to_pylist()
        return sum(time < end for time in times)

    def each_once(self, dag_id: str) -> bool:
        rig = self.rigs[dag_id]
        return rig.rows("SELECT count(*) FROM item WHERE xmax <> 0") == [(0,)] and rig.comparison().equal


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory, source_server: PostgresServer, target_server: PostgresServer
) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("backfill")
    source_dsn = source_server.create_database("backfill")
    execute(source_dsn, TABLE)
    rigs = {
        name: Rig(
            config=PipelineConfig(pipeline=name, log_url=str(directory / "logs" / name), start=Start.EMPTY, channels=1),
            source_dsn=source_dsn,
            target_dsn=target_server.create_database(name),
        )
        for name in NAMES
    }
    for rig in rigs.values():
        execute(rig.target_dsn, TABLE)
        run.prepare(rig.config, rig.source, rig.target)
    first = write_history(source_dsn)
    target_server.create_database("airflow")
    metadata = target_server.uri("airflow").replace("postgresql://", "postgresql+psycopg2://")
    options = AirflowOptions(
        home=directory / "home",
        dags=DAGS,
        connections={
            "parallel_apply_source": source_server.uri("backfill"),
            **{f"target_{name}": target_server.uri(name) for name in NAMES},
        },
        environment={
            RUNTIME_DIR_VARIABLE: str(directory),
            "BACKFILL_LOGS": str(directory / "logs"),
            "BACKFILL_END": (first + INTERVALS * SECOND).isoformat(),
            "PYTHONPATH": str(REPOSITORY),
        },
        settings={"database": {"sql_alchemy_conn": metadata}},
        parallelism=3,
    )
    with AirflowServices(options) as airflow:
        for name in NAMES:
            airflow.wait_for_dag(name)
        yield Scene(airflow, rigs, first)


def write_history(dsn: str) -> datetime:
    """A transaction every 50 ms over whole seconds by the server's clock, and some behind them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT date_trunc('second', clock_timestamp()) + interval '1 second'").fetchone()
        assert row is not None
        first: datetime = row[0]
        connection.execute("SELECT pg_sleep_until(%s)", [first])
        number = 0
        while (row := connection.execute("SELECT clock_timestamp()").fetchone()) and row[0] < first + (
            INTERVALS + 1
        ) * SECOND:
            connection.execute("INSERT INTO item VALUES (%s, clock_timestamp())", [number])
            connection.execute("SELECT pg_sleep(0.05)")
            number += 1
    return first


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT.total_seconds() + 600)
def test_a_backfill_from_the_newest_to_the_oldest_ends_equal_and_green(scene: Scene) -> None:
    scene.backfill("backwards", "--run-backwards", intervals=INTERVALS + 1)
    assert scene.runs("backwards") == ["success"] * (INTERVALS + 1)
    assert scene.each_once("backwards")


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT.total_seconds() + 600)
def test_a_backfill_in_order_and_once_more_applies_each_transaction_once(scene: Scene) -> None:
    scene.backfill("forwards")
    assert scene.runs("forwards") == ["success"] * INTERVALS
    assert scene.applied("forwards") == scene.committed("forwards", INTERVALS)

    rig = scene.rigs["forwards"]
    reached, generation = scene.seqnos("forwards"), read_status(rig.target, "forwards").generation
    scene.backfill("forwards", "--reprocess-behavior", "completed")
    assert scene.runs("forwards") == ["success"] * INTERVALS
    assert scene.seqnos("forwards") == reached
    assert read_status(rig.target, "forwards").generation == generation

    scene.backfill("forwards", "--reprocess-behavior", "completed", "--run-backwards")
    assert scene.seqnos("forwards") == reached
    scene.backfill("forwards", first=INTERVALS, intervals=1)
    assert scene.each_once("forwards")


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT.total_seconds() + 600)
def test_a_gap_ahead_names_the_interval_to_run_first_and_is_closed_by_it(scene: Scene) -> None:
    scene.backfill("gap", first=GAP, intervals=1)
    assert scene.runs("gap") == ["failed"]
    ((run_id,),) = scene.metadata("SELECT run_id FROM dag_run WHERE dag_id = 'gap'")
    said = str(scene.airflow.client.xcom("gap", run_id, "close", "error"))
    start, end = scene.first, scene.first + SECOND
    assert f"Run the interval [{start.isoformat()}, {end.isoformat()}) first" in said
    assert scene.rigs["gap"].rows("SELECT count(*) FROM item") == [(0,)]

    scene.backfill("gap", intervals=GAP)
    scene.backfill("gap", "--reprocess-behavior", "failed", first=GAP, intervals=1)
    assert scene.runs("gap") == ["success"] * (GAP + 1)
    assert scene.applied("gap") == scene.committed("gap", GAP + 1)

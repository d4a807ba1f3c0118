"""Spark reads units from a router, and neither it nor the lanes see the log's directory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.run import OpenedRun
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.rig import Rig
from tests.support.routers import RouterCommand, served_logs
from tests.support.variants import gated

NOWHERE = "/nowhere/on/this/host"
KILLS = 3


@pytest.fixture
def pipeline(
    source_dsn: str, target_dsn: str, spark_server: ServerLease, spark_session_id: str, tmp_path: Path
) -> Callable[[str], Rig]:
    """The pipeline of the log `shop` at a router, as capture's host has it."""

    def make(url: str) -> Rig:
        config = PipelineConfig(
            pipeline="p",
            log_url=f"{url}/shop",
            log_directory=str(tmp_path / "logs" / "shop"),
            start=Start.EMPTY,
            channels=3,
            lanes=2,
            epoch_max_changes=4_000,
        )
        rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)

        def stage(opened: OpenedRun) -> Stage:
            access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)
            return open_stage(access=access, config=elsewhere(rig).config, target=rig.target)

        return replace(rig, stage=stage)

    (tmp_path / "logs").mkdir()
    return make


def elsewhere(rig: Rig) -> Rig:
    return rig.having(log_directory=NOWHERE)


def written(rig: Rig) -> Rig:
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE g (id int PRIMARY KEY, v text)")
    rig.prepare()
    rig.write(
        "INSERT INTO t SELECT n, repeat('a', 50) FROM generate_series(1, 12000) n",
        "INSERT INTO g SELECT n, 'a' FROM generate_series(1, 900) n",
        "UPDATE t SET v = v || 'b' WHERE id % 3 = 0",
        "TRUNCATE g",
        "INSERT INTO g SELECT n, 'b' FROM generate_series(1, 500) n",
        "DELETE FROM t WHERE id % 7 = 0",
    )
    return rig


def opened_run(rig: Rig) -> OpenedRun:
    there = elsewhere(rig)
    rig.capture("run")
    plan(there.config, there.target)
    return there.open("run")


@gated
def test_a_pipeline_without_the_directory_arrives_equal(pipeline: Callable[[str], Rig], tmp_path: Path) -> None:
    with served_logs(tmp_path / "logs", token="t") as url:
        rig = written(pipeline(url.replace("://", "://:t@")))
        opened = opened_run(rig)
        there = elsewhere(rig)
        there.close(opened, there.apply(opened))
        assert rig.comparison().equal


@pytest.mark.long
def test_a_router_that_is_killed_in_mid_stream_loses_nothing(pipeline: Callable[[str], Rig], tmp_path: Path) -> None:
    router = RouterCommand(tmp_path / "logs")
    try:
        rig = written(pipeline(router.url))
        opened = opened_run(rig)
        there = elsewhere(rig)
        with striking(router) as kills:
            reports = there.apply(opened)
        assert kills
        there.close(opened, reports)
        assert rig.comparison().equal
    finally:
        router.process.kill()
        router.process.communicate()


@contextmanager
def striking(router: RouterCommand) -> Iterator[list[int]]:
    """Kill the router, and start it again, some of the times when it streams."""
    kills: list[int] = []
    ended = threading.Event()
    asked = StreamClient(router_address(router.url), patience=timedelta(0))

    def strike() -> None:
        while not ended.is_set() and len(kills) < KILLS:
            try:
                streams = asked.call("health", {})["streams"]
            except ParallelApplyError:
                continue
            if streams:
                kills.append(streams)
                router.end(signal.SIGKILL)
                router.start()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield kills
    finally:
        ended.set()
        thread.join()

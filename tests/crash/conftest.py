"""Pipelines on servers that a test may kill: durable as in life, in directories of their own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.run import OpenedRun
from airflow_parallel_apply.spark.layout import ServerSettings
from airflow_parallel_apply.spark.server import connect_server, stop_server
from airflow_parallel_apply.spark.session import ConnectAccess, close_session, open_session, warm_up
from airflow_parallel_apply.spark.stage import SparkStage, open_stage
from tests.crash.scene import Scene
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig
from tests.support.steps import Steps


@pytest.fixture
def durable_target() -> Iterator[PostgresServer]:
    """A target of the test's own, that survives a kill -9 as one in production does."""
    with TemporaryDirectory(prefix="parallel-apply-target-") as directory:
        server = CopiedServer(
            Path(directory) / "data",
            settings={"fsync": "on", "shared_buffers": "64MB", "max_prepared_transactions": "20"},
        )
        with server:
            yield server


@dataclass(frozen=True, kw_only=True)
class WarmSpark:
    """An embedded server in a directory of its own; one session for all, so that each run finds warm workers."""

    directory: Path
    leases: ExitStack
    session_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def url(self) -> str:
        """The URL of the server that runs now, started where a test killed the former one."""
        return self.leases.enter_context(
            connect_server(settings=replace(ServerSettings.from_environment(), idle=timedelta(seconds=20)))
        ).url


@pytest.fixture(scope="session")
def warm_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSpark]:
    """Other processes of this test session find it too."""
    directory = tmp_path_factory.mktemp("spark")
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(RUNTIME_DIR_VARIABLE, str(directory))
        stack.callback(stop_server, directory=directory)
        spark = WarmSpark(directory=directory, leases=stack.enter_context(ExitStack()))
        session = open_session(spark.url(), spark.session_id)
        warm_up(session)
        close_session(session)
        yield spark


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steps]:
    with Steps(tmp_path_factory.mktemp("steps")) as found:
        yield found


@pytest.fixture
def scene(source_dsn: str, target_server: PostgresServer, target_dsn: str, tmp_path: Path, steps: Steps) -> Scene:
    """Without Spark; the target's server is everybody's and must live."""
    return Scene(
        rig=Rig(config=crash_config(tmp_path), source_dsn=source_dsn, target_dsn=target_dsn),
        target_server=target_server,
        steps=steps,
    )


@pytest.fixture
def spark_scene(
    source_dsn: str, durable_target: PostgresServer, tmp_path: Path, steps: Steps, warm_spark: WarmSpark
) -> Scene:
    """On a warm Spark and a target that both may die."""
    rig = Rig(config=crash_config(tmp_path), source_dsn=source_dsn, target_dsn=durable_target.create_database("target"))
    return Scene(
        rig=replace(rig, stage=_spark_stage(rig, warm_spark)),
        target_server=durable_target,
        steps=steps,
        spark_directory=warm_spark.directory,
        session_id=warm_spark.session_id,
    )


def crash_config(directory: Path) -> PipelineConfig:
    """Small epochs, small units, a lease that is over soon."""
    return PipelineConfig(
        pipeline="p",
        start=Start.EMPTY,
        log_url=str(directory / "log"),
        channels=3,
        lanes=2,
        ddl=DdlPolicy.APPLY,
        epoch_max_changes=400,
        unit_max_bytes=2**18,
        lease=timedelta(seconds=3),
    )


def _spark_stage(rig: Rig, spark: WarmSpark) -> Callable[[OpenedRun], SparkStage]:
    return lambda opened: open_stage(
        access=ConnectAccess(url=spark.url, session_id=spark.session_id), config=rig.config, target=rig.target
    )


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """A line that is seen while the test runs."""

    def printed(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    return printed

"""What integration tests share: a pipeline to change, and one embedded Spark in a directory of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from airflow_parallel_apply.spark.layout import ServerSettings
from airflow_parallel_apply.spark.server import ServerLease, connect_server, stop_server
from airflow_parallel_apply.spark.session import release_session
from tests.support.rig import Rig


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """Without tables; what modules change of it is in a fixture of theirs."""
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=2,
        lanes=2,
        tables=TablePatterns(include=("*.*",)),
        ddl=DdlPolicy.APPLY,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the server; processes find it through `PARALLEL_APPLY_RUNTIME_DIR`."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark_server(spark_directory: Path) -> Iterator[ServerLease]:
    try:
        with connect_server(
            settings=replace(ServerSettings.from_environment(), idle=timedelta(seconds=30)), directory=spark_directory
        ) as lease:
            yield lease
    finally:
        stop_server(directory=spark_directory)


@pytest.fixture(scope="session")
def spark_session_id(spark_server: ServerLease) -> Iterator[str]:
    """One warm session for every test that does not end it."""
    session_id = str(uuid.uuid4())
    yield session_id
    release_session(spark_server.url, session_id)

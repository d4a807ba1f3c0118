"""Pipelines on servers that a test may kill: durable as in life, in directories of their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig
from tests.crash.scene import Scene
from tests.support.rig import Rig
from tests.support.steps import Steps


@pytest.fixture
def durable_target() -> Iterator[PostgresServer]:
    """A target of the test's own, that survives a kill -9 as one in production does."""
    with TemporaryDirectory(prefix="parallel-apply-target-") as directory:
        server = PostgresServer(Path(directory) / "data", settings={"fsync": "on", "shared_buffers": "64MB"})
        with server:
            yield server


@pytest.fixture
def scene(source_dsn: str, target_server: PostgresServer, target_dsn: str, tmp_path: Path) -> Iterator[Scene]:
    """Without Spark; the target's server is everybody's and must live."""
    with Steps(tmp_path, spare=1) as steps:
        yield Scene(
            rig=Rig(config=crash_config(tmp_path), source_dsn=source_dsn, target_dsn=target_dsn),
            target_server=target_server,
            steps=steps,
        )


def crash_config(directory: Path) -> PipelineConfig:
    """Many small epochs, a lease that is over soon."""
    return PipelineConfig(
        pipeline="p",
        log_url=str(directory / "log"),
        channels=3,
        lanes=2,
        ddl=DdlPolicy.APPLY,
        epoch_max_changes=400,
        unit_max_bytes=2**18,
        lease=timedelta(seconds=3),
    )

"""Pipelines of pgbench's tables whose lanes stage through Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.rig import Rig

BY_TELLER: Final[Mapping[str, Any]] = {
    "partitioner": "shard",
    "shard_by": (("*", "tid % 7"),),
    "channels": 3,
    "tables": TablePatterns(include=("public.pgbench_tellers", "public.pgbench_history")),
}
"""Settings by which most transactions of pgbench's history stay in one channel."""


@pytest.fixture
def pgbench_rig(
    source_server: PostgresServer,
    target_server: PostgresServer,
    source_database: str,
    target_database: str,
    spark_server: ServerLease,
    spark_session_id: str,
    tmp_path: Path,
) -> Callable[..., Rig]:
    """Makes a pipeline with these settings, of tables that are empty on both sides. It is not prepared yet."""
    for server, database in ((source_server, source_database), (target_server, target_database)):
        server.run("pgbench", "-i", "-I", "dtp", "--quiet", database=database)
    target = Endpoint(conn_id="target", url=target_server.dsn(target_database))
    access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)

    def make(**settings: Any) -> Rig:
        config = PipelineConfig(
            pipeline=source_database, start=Start.EMPTY, log_url=str(tmp_path / "log"), lanes=2, **settings
        )
        return Rig(
            config=config,
            source_dsn=source_server.dsn(source_database),
            target_dsn=target.url,
            stage=lambda opened: open_stage(access=access, config=config, target=target),
        )

    return make


@pytest.fixture
def pgbench(source_server: PostgresServer, source_database: str) -> Callable[..., None]:
    """Runs pgbench at the source."""

    def run(*arguments: str) -> None:
        source_server.run("pgbench", *arguments, database=source_database)

    return run

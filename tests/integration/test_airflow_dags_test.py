"""`airflow dags test parallel_apply`: the whole pipeline with real databases and Spark, one task after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.demo.history import create_tables, load_tables, run_transactions
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.status import read_status
from airflow_parallel_apply.spark.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.spark.server import ServerLease

REPOSITORY = Path(__file__).parents[2]
CHANNELS = 8


class Airflow:
    """An Airflow home with connections, and `airflow dags test` in it, each run a process of its own."""

    def __init__(self, home: Path, connections: dict[str, str], more: dict[str, str] | None = None) -> None:
        self.home = home
        variables = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        named = {f"AIRFLOW_CONN_{conn_id.upper()}": uri for conn_id, uri in connections.items()}
        self.environment = {**variables, "AIRFLOW_HOME": str(home), **named, **(more or {})}

    def migrate(self) -> None:
        dags = f"[core]\ndags_folder = {REPOSITORY / 'dags'}\nload_examples = False\n"
        (self.home / "airflow.cfg").write_text(dags)
        self._airflow("db", "migrate")

    def run(self, **conf: Any) -> str:
        """Run the DAG; its output. An exit code other than 0 fails the test."""
        return self._airflow("dags", "test", "parallel_apply", "--conf", json.dumps(conf))

    def refused(self, **conf: Any) -> str:
        """Run the DAG, which must end red; its output."""
        with pytest.raises(subprocess.CalledProcessError) as raised:
            self.run(**conf)
        return str(raised.value.stdout) + str(raised.value.stderr)

    def _airflow(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
            cwd=self.home,
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a metadata database, which takes seconds to make."""
    directory = tmp_path_factory.mktemp("airflow")
    Airflow(directory, {}).migrate()
    return directory


@pytest.fixture
def airflow(
    home: Path,
    spark_directory: Path,
    spark_server: ServerLease,
    source_server: PostgresServer,
    source_database: str,
    target_server: PostgresServer,
    target_database: str,
) -> Airflow:
    return Airflow(
        home,
        {
            "parallel_apply_source": source_server.uri(source_database),
            "parallel_apply_target": target_server.uri(target_database),
        },
        {RUNTIME_DIR_VARIABLE: str(spark_directory)},
    )


def test_an_initial_copy_and_eight_channels_complete_with_one_slot(
    airflow: Airflow,
    tmp_path: Path,
    source_server: PostgresServer,
    source_database: str,
    target_server: PostgresServer,
    target_database: str,
) -> None:
    source = Endpoint(conn_id="source", dsn=source_server.dsn(source_database))
    target = Endpoint(conn_id="target", dsn=target_server.dsn(target_database))
    create_tables(source_server, source_database)
    load_tables(source_server, source_database, scale=1)

    log_url = str(tmp_path / "log")
    airflow.run(channels=CHANNELS, log_url=log_url, create_tables=True)
    assert compare(source, target, TablePatterns()).equal
    run_transactions(source_server, source_database, 1000, on_progress=lambda done: None)
    airflow.run(channels=CHANNELS, log_url=log_url)

    assert compare(source, target, TablePatterns()).equal
    reached = {channel.seqno for channel in read_status(target, "parallel_apply").channels}
    assert reached == {999}

    generation = read_status(target, "parallel_apply").generation
    before = transactions_of(target.dsn)
    airflow.run(channels=CHANNELS, log_url=log_url)
    assert read_status(target, "parallel_apply").generation == generation
    assert transactions_of(target.dsn) == before


def test_errors_before_anything_starts_are_red_and_one_line(airflow: Airflow, target_dsn: str) -> None:
    airflow.environment["AIRFLOW_CONN_CLUSTER"] = "spark://local%5B2%5D"
    said = airflow.refused(spark_conn_id="cluster")
    assert "spark_conn_id: connection 'cluster' has type 'spark'" in said
    with psycopg.connect(target_dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('parallel_apply')").fetchone() == (None,)


def transactions_of(dsn: str) -> list[tuple[Any, ...]]:
    """When each row of the positions was last written, by transaction."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
        ).fetchall()
        return [
            connection.execute(f'SELECT max(xmin::text::bigint), count(*) FROM public."{name}"').fetchone() or ()
            for (name,) in tables
        ]

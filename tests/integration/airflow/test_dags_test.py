"""`airflow dags test parallel_apply`: the whole pipeline with real databases and Spark, one task after the other."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.demo.history import create_tables, load_tables, run_transactions
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.run import prepare
from airflow_parallel_apply.queue import open_queue
from airflow_parallel_apply.spark.server import ServerLease
from tests.support.dags_test import Airflow
from tests.support.processes import files_below
from tests.support.queue_service import ServedQueue, make_certificate
from tests.support.rig import execute
from tests.support.variants import gated

CHANNELS = 8
PIPELINE = "dags_test"
TOKEN: Final = "a-token-of-ours"


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


@gated
def test_eight_channels_complete_with_one_slot(
    airflow: Airflow,
    tmp_path: Path,
    source_server: PostgresServer,
    source_database: str,
    target_server: PostgresServer,
    target_database: str,
) -> None:
    source = Endpoint(conn_id="source", url=source_server.dsn(source_database))
    target = Endpoint(conn_id="target", url=target_server.dsn(target_database))
    create_tables(source_server, source_database)
    create_tables(target_server, target_database)
    config = PipelineConfig(
        pipeline=PIPELINE, channels=CHANNELS, log_url=str(tmp_path / "log"), start=Start.EMPTY, tables=TablePatterns()
    )
    prepare(config, source, target)
    load_tables(source_server, source_database, scale=1)
    run_transactions(source_server, source_database, 1000, on_progress=lambda done: None)
    airflow.run(pipeline=PIPELINE, channels=CHANNELS, log_url=config.log_url, start="empty")

    assert compare(source, target, TablePatterns()).equal
    reached = {channel.seqno for channel in read_status(target, PIPELINE).channels}
    assert reached == {1000}


@pytest.mark.long
def test_errors_before_anything_starts_are_red_and_one_line(airflow: Airflow, target_dsn: str) -> None:
    airflow.environment["AIRFLOW_CONN_CLUSTER"] = "spark://local%5B2%5D"
    said = airflow.refused(spark_conn_id="cluster")
    assert "spark_conn_id: connection 'cluster' has type 'spark'" in said
    with psycopg.connect(target_dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('parallel_apply')").fetchone() == (None,)


@pytest.mark.long
def test_the_queue_may_be_behind_a_guarded_service_and_nothing_shows_its_token(
    airflow: Airflow, tmp_path: Path, source_dsn: str, target_dsn: str, spark_server: ServerLease
) -> None:
    cert, key = make_certificate(tmp_path)
    served = ServedQueue(tmp_path / "queue", listen="localhost:0", tls_certificate=cert, tls_key=key, token=TOKEN)
    airflow.environment["AIRFLOW_CONN_OUR_QUEUE"] = json.dumps(
        {
            "conn_type": "parallel_apply_queue",
            "host": "localhost",
            "port": int(served.url.rpartition(":")[2]),
            "password": TOKEN,
            "extra": {"protocol": "grpcs", "ca": str(cert)},
        }
    )
    execute(source_dsn, "CREATE TABLE item (id bigint PRIMARY KEY, note text)")
    execute(source_dsn, "INSERT INTO item SELECT i, 'copied' FROM generate_series(1, 500) i")
    told = {"pipeline": "guarded", "channels": CHANNELS, "log_url": str(tmp_path / "log"), "queue": "our_queue"}
    said = airflow.run(create_tables=True, **told)
    execute(source_dsn, "UPDATE item SET note = 'changed' WHERE id % 2 = 0", "TRUNCATE item")
    execute(source_dsn, "INSERT INTO item SELECT i, 'new' FROM generate_series(1, 300) i")
    said += airflow.run(epoch_max_changes=50, **told)

    source, target = Endpoint(conn_id="source", url=source_dsn), Endpoint(conn_id="target", url=target_dsn)
    assert compare(source, target, TablePatterns()).equal
    with psycopg.connect(target_dsn) as connection:
        row = connection.execute(
            "SELECT queue, to_regclass('parallel_apply.task')::text FROM parallel_apply.pipeline"
        ).fetchone()
    assert row == (served.url, None)
    queue = open_queue(f"{served.url.replace('//', f'//:{TOKEN}@')}?ca={cert}")
    assert queue.queue_stats() == ()
    queue.close()
    served.stop()
    assert TOKEN not in said
    assert list(files_with(airflow.home, TOKEN)) == []
    assert list(files_with(tmp_path, TOKEN)) == []
    if spark_server.ui_url is not None:
        for page in ("environment", "jobs"):
            with urllib.request.urlopen(f"{spark_server.ui_url}/{page}/", timeout=120) as answer:  # noqa: S310
                assert TOKEN not in answer.read().decode()


def files_with(directory: Path, text: str) -> Iterator[Path]:
    """Logs, Airflow's database, with XComs and rendered fields in it."""
    for path in files_below(directory):
        with suppress(OSError):
            if path.is_file() and text.encode() in path.read_bytes():
                yield path

"""Real servers for every test that wants one; a database of its own for each test."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg import sql

from airflow_parallel_apply.demo.postgres import PostgresServer

_numbers = itertools.count()

# Airflow reads its home when it is imported, which some test modules do.
_AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="parallel-apply-airflow-"))
atexit.register(shutil.rmtree, _AIRFLOW_HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = str(_AIRFLOW_HOME)
(_AIRFLOW_HOME / "airflow.cfg").write_text(
    f"""\
[core]
dags_folder = {Path(__file__).parents[1] / "dags"}
load_examples = False
[logging]
logging_level = WARNING
"""
)


def pytest_configure(config: pytest.Config) -> None:
    """Temporary directories of this run's own: as root, servers run as another user, which has to pass the directories
    above its own, and pytest forbids that for the shared default each time that another run begins.
    """
    if config.option.basetemp is None:
        config.option.basetemp = base = tempfile.mkdtemp(prefix="parallel-apply-tests-")
        config.add_cleanup(lambda: shutil.rmtree(base, ignore_errors=True))


@pytest.fixture(scope="session")
def source_server() -> Iterator[PostgresServer]:
    yield from _server("source")


@pytest.fixture(scope="session")
def target_server() -> Iterator[PostgresServer]:
    yield from _server("target")


@pytest.fixture
def source_database(source_server: PostgresServer) -> Iterator[str]:
    """Name of a fresh database on the source server."""
    yield from _fresh(source_server)


@pytest.fixture
def target_database(target_server: PostgresServer) -> Iterator[str]:
    """Name of a fresh database on the target server."""
    yield from _fresh(target_server)


@pytest.fixture
def source_dsn(source_server: PostgresServer, source_database: str) -> str:
    return source_server.dsn(source_database)


@pytest.fixture
def target_dsn(target_server: PostgresServer, target_database: str) -> str:
    return target_server.dsn(target_database)


def _server(side: str) -> Iterator[PostgresServer]:
    # Not under pytest's own directory: another session's start takes the server's user the way to it.
    with TemporaryDirectory(prefix=f"parallel-apply-{side}-") as directory:
        server = PostgresServer(Path(directory) / "data", settings={"fsync": "off"})
        with server:
            yield server


def _fresh(server: PostgresServer) -> Iterator[str]:
    """Gone afterwards with its slots, of which a server has few."""
    name = f"test_{next(_numbers)}"
    server.create_database(name)
    yield name
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE database = %s AND active",
            [name],
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
        )
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

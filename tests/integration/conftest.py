"""One embedded Spark for all integration tests, in a directory of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_parallel_apply.spark.layout import ServerSettings
from airflow_parallel_apply.spark.server import ServerLease, connect_server, stop_server
from airflow_parallel_apply.spark.session import release_session


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerLease]:
    directory = tmp_path_factory.mktemp("spark")
    try:
        with connect_server(settings=ServerSettings(idle=timedelta(seconds=30)), directory=directory) as lease:
            yield lease
    finally:
        stop_server(directory=directory)


@pytest.fixture(scope="session")
def spark_session_id(spark_server: ServerLease) -> Iterator[str]:
    """One warm session for every test that does not end it."""
    session_id = str(uuid.uuid4())
    yield session_id
    release_session(spark_server.url, session_id)

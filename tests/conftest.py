"""Real servers for every test that wants one; a database of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def source_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    yield from _server(tmp_path_factory.mktemp("source") / "data")


@pytest.fixture(scope="session")
def target_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    yield from _server(tmp_path_factory.mktemp("target") / "data")


@pytest.fixture
def source_database(source_server: PostgresServer) -> str:
    """Name of a fresh database on the source server."""
    return _fresh(source_server.create_database)


@pytest.fixture
def target_database(target_server: PostgresServer) -> str:
    """Name of a fresh database on the target server."""
    return _fresh(target_server.create_database)


@pytest.fixture
def source_dsn(source_server: PostgresServer, source_database: str) -> str:
    return source_server.dsn(source_database)


@pytest.fixture
def target_dsn(target_server: PostgresServer, target_database: str) -> str:
    return target_server.dsn(target_database)


def _server(directory: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(directory, settings={"fsync": "off"})
    with server:
        yield server


def _fresh(create: Callable[[str], str]) -> str:
    name = f"test_{next(_numbers)}"
    create(name)
    return name

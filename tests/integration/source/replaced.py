"""A pipeline that ran, whose source another server replaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig

SETTINGS = {"shared_buffers": "16MB", "max_wal_size": "64MB", "autovacuum": "off", "wal_level": "logical"}
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
)


@pytest.fixture(name="servers")
def servers_of_test() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(name="source")
def server_of_source(servers: ExitStack, tmp_path: Path) -> PostgresServer:
    return servers.enter_context(CopiedServer(tmp_path / "source", settings=SETTINGS))


@pytest.fixture(name="rig")
def rig_that_ran(source: PostgresServer, target_dsn: str, tmp_path: Path) -> Rig:
    """A pipeline that ran, with a transaction that the slot keeps in front of it."""
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=2,
        lanes=1,
        tables=TablePatterns(include=("public.*",)),
    )
    rig = Rig(config=config, source_dsn=source.dsn(), target_dsn=target_dsn)
    rig.both(*TABLES)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "INSERT INTO parted VALUES (1, 'a')")
    rig.run()
    return rig


def at(rig: Rig, server: PostgresServer) -> Rig:
    return Rig(config=rig.config, source_dsn=server.dsn(), target_dsn=rig.target_dsn)


def goes_on(rig: Rig) -> None:
    """Green and equal, again and again, each table by several changes."""
    for number in range(100, 103):
        rig.write(
            f"INSERT INTO t VALUES ({number}, 'd')",
            f"INSERT INTO parted VALUES ({number}, 'd')",
            f"UPDATE parted SET v = '{number}' WHERE id = 1",
        )
        rig.run()
        assert same(rig)


def same(rig: Rig) -> bool:
    queries = ("SELECT * FROM t ORDER BY id", "SELECT * FROM parted ORDER BY id")
    return all(rig.rows(query) == rig.rows(query, side="source") for query in queries)

"""A standby of a pipeline's source that was promoted in its place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.capture.adoption import adopt_source
from airflow_parallel_apply.pipeline.config import Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError
from airflow_parallel_apply.pipeline.model.finding import Side
from tests.integration.source.replaced import SETTINGS, at, goes_on, rig_that_ran, server_of_source, servers_of_test  # noqa: F401  # fixtures
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig, execute


@pytest.mark.long
def test_a_promoted_standby_with_a_synchronized_slot_goes_on_by_itself(
    servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    standby = standby_of(servers, source, rig, tmp_path)
    rig.write("INSERT INTO t VALUES (50, 'not captured before')")
    wait_until(lambda: rows_at(standby, "SELECT 1 FROM t WHERE id = 50") == [(1,)])
    source.kill()
    execute(standby.dsn(), "SELECT pg_promote()")
    rig = at(rig, standby)
    assert not adopt_source(rig.source, rig.config).is_new
    goes_on(rig)


@pytest.mark.long
@pytest.mark.parametrize("writes", [0, 30])
def test_a_promoted_standby_that_is_behind_the_log_is_refused_and_a_new_start_ends_equal(
    servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path, writes: int
) -> None:
    standby = standby_of(servers, source, rig, tmp_path)
    standby.stop()
    rig.write("INSERT INTO t VALUES (50, 'captured, and lost')", "DELETE FROM parted")
    rig.run()
    source.kill()
    standby.start()
    execute(standby.dsn(), "SELECT pg_promote()")
    rig = at(rig, standby)
    rig.write(*(f"INSERT INTO t VALUES ({number}, 'later')" for number in range(200, 200 + writes)))
    for _ in range(2):
        with pytest.raises((SourceError, ConfigurationError), match=r"restored|replaced") as refused:
            rig.run()
    for step in ("parallel-apply drop", "empty the target's tables", "a new log_url", "start=copy"):
        assert step in str(refused.value.hint)
    with pytest.raises(SourceError, match=r"restored|replaced"):
        adopt_source(rig.source, rig.config)
    removal = drop_pipeline("p", rig.source, rig.target, log_url=rig.config.log_url)
    assert not [left for left in removal.left if left.side is not Side.LOG]
    execute(rig.target_dsn, "TRUNCATE t, parted")
    goes_on(rig.having(log_url=str(tmp_path / "new log"), start=Start.COPY))


def standby_of(servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path) -> PostgresServer:
    """A physical standby that keeps the pipeline's slot and has all that the source has."""
    directory = tmp_path / "standby"
    rig.write("SELECT pg_create_physical_replication_slot('standby', true)")
    source.run("pg_basebackup", "--pgdata", str(directory), "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
    owner = source.directory.stat()
    for path in (directory, *directory.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    settings = {
        "primary_conninfo": f"{source.dsn()}",
        "primary_slot_name": "standby",
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
    }
    standby = servers.enter_context(CopiedServer(directory, settings={**SETTINGS, **settings}))
    rig.write("INSERT INTO t VALUES (20, 'at both')")
    rig.run()
    kept = "SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"
    wait_until(lambda: rows_at(standby, kept) == [(1,)])
    written = rig.rows("SELECT pg_current_wal_flush_lsn()::text", side="source")[0][0]
    wait_until(lambda: rows_at(standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'") == [(True,)])
    return standby


def rows_at(server: PostgresServer, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn()) as connection:
        return connection.execute(query).fetchall()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

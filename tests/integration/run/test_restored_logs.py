"""A log that is restored together with its source fits that; only the target shows that both have lost something."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import LogError, Unavailable
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig, execute
from tests.support.variants import gated

SETTINGS = {"shared_buffers": "16MB", "max_wal_size": "64MB", "autovacuum": "off", "fsync": "off"}
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    with CopiedServer(tmp_path / "data", settings=SETTINGS) as server:
        yield server


@pytest.fixture
def pipeline(rig: Rig, server: PostgresServer) -> Rig:
    made = Rig(
        config=rig.having(start=Start.EMPTY, slot="both", tables=TablePatterns()).config,
        source_dsn=server.dsn(),
        target_dsn=rig.target_dsn,
    )
    made.both(TABLE)
    made.write("SELECT pg_switch_wal()")
    made.prepare()
    made.write("INSERT INTO t VALUES (1, 'kept')")
    made.run()
    return made


def keep(server: PostgresServer, pipeline: Rig, directory: Path) -> None:
    server.stop()
    shutil.copytree(server.directory, directory / "kept source", symlinks=True)
    shutil.copytree(pipeline.config.log_url, directory / "kept log")
    server.start()


def bring_back(server: PostgresServer, pipeline: Rig, directory: Path) -> None:
    server.stop()
    owner = server.directory.stat()
    for kept, place in (("kept source", server.directory), ("kept log", Path(pipeline.config.log_url))):
        shutil.rmtree(place)
        shutil.copytree(directory / kept, place, symlinks=True)
    for path in (server.directory, *server.directory.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.start()


def test_source_and_log_of_an_earlier_moment_do_not_go_on_with_a_later_target(
    server: PostgresServer, pipeline: Rig, tmp_path: Path
) -> None:
    keep(server, pipeline, tmp_path)
    pipeline.write("INSERT INTO t VALUES (2, 'lost')")
    pipeline.run()
    bring_back(server, pipeline, tmp_path)
    pipeline.write("INSERT INTO t VALUES (3, 'new')", "INSERT INTO t VALUES (4, 'new')")
    for _ in range(2):
        with pytest.raises(Unavailable, match="an older state of itself"):
            pipeline.run()
    found = errors(check_pipeline(pipeline.config, pipeline.source, pipeline.target).findings)
    assert any("an older state of itself" in finding.what for finding in found)
    # What the hint says.
    drop_pipeline(
        "p", pipeline.source, pipeline.target, slot="both", log_url=pipeline.config.log_url, with_log=True, force=False
    )
    execute(pipeline.target_dsn, "TRUNCATE t")
    anew = pipeline.having(start=Start.COPY)
    anew.run()
    assert anew.comparison().equal


@gated
def test_a_run_whose_end_the_log_has_lost_is_not_opened_again(
    server: PostgresServer, pipeline: Rig, tmp_path: Path
) -> None:
    """Its lanes would wait for that transaction for ever, or end at another one of its number."""
    keep(server, pipeline, tmp_path)
    pipeline.write("INSERT INTO t VALUES (2, 'lost')")
    pipeline.capture("r")
    bring_back(server, pipeline, tmp_path)
    with pytest.raises(Unavailable, match="an older state of itself"):
        pipeline.capture("r")


@pytest.mark.long
def test_another_pipeline_of_the_log_does_not_hide_that_a_target_is_of_a_lost_history(
    server: PostgresServer, pipeline: Rig, target_server: PostgresServer, tmp_path: Path
) -> None:
    other = Rig(
        config=pipeline.having(pipeline="other").config,
        source_dsn=pipeline.source_dsn,
        target_dsn=target_server.create_database("restored_logs"),
    )
    execute(other.target_dsn, TABLE)
    other.run()
    keep(server, pipeline, tmp_path)
    pipeline.write(f"INSERT INTO t VALUES (2, '{'lost' * 100}')")
    pipeline.run()
    bring_back(server, pipeline, tmp_path)
    pipeline.write(*(f"INSERT INTO t VALUES ({number}, 'new')" for number in range(3, 6)))
    other.run()
    assert other.comparison().equal
    with pytest.raises(LogError, match="another transaction of seqno 1"):
        pipeline.run()

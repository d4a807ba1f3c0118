"""Spark runs a task again whose worker died when the target had done its work, and before anybody was told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, GroupPart, StagedUnit, Unit, UnitKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import SparkStage
from tests.integration.spark.test_stage import holders
from tests.support.staging import eventually, in_background, make_target
from tests.support.written_log import Change, append, make_log

ROWS: Final = 100
SESSION: Final = "FROM pg_stat_activity WHERE application_name LIKE 'pa:%:%:%' AND wait_event = 'PgSleep'"


@pytest.fixture
def target(target_dsn: str) -> Iterator[PostgresTarget]:
    """A target at which whoever prepares or commits what it applied waits in that statement while a gate is closed."""
    found = make_target(target_dsn)
    found.lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    found.own(1)
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE gate (closed boolean)")
        connection.execute("INSERT INTO gate VALUES (true)")
        connection.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " WHILE (SELECT closed FROM public.gate) LOOP PERFORM pg_sleep(0.05); END LOOP; RETURN NULL; END $$"
        )
        for table, event in (("branch", "INSERT"), ("position", "UPDATE OF seqno")):
            connection.execute(
                f"CREATE CONSTRAINT TRIGGER wait AFTER {event} ON parallel_apply.{table}"
                " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()"
            )
            connection.execute(f"ALTER TABLE parallel_apply.{table} ENABLE ALWAYS TRIGGER wait")
    yield found
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        for name in prepared(connection):
            connection.execute(f"ROLLBACK PREPARED '{name}'")
    found.close()


@contextmanager
def staging_on(server: ServerLease, session_id: str, log_url: str, dsn: str) -> Iterator[SparkStage]:
    log = open_reader(log_url)
    access = ConnectAccess(url=server.url, session_id=session_id)
    stage = SparkStage(access=access, log=log, store=LogStore(log), target=Endpoint(conn_id="t", url=dsn))
    try:
        yield stage
    finally:
        stage.close()


def prepared(connection: psycopg.Connection) -> list[str]:
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
    return [name for (name,) in connection.execute(query)]


def is_done(connection: psycopg.Connection) -> bool:
    moved = connection.execute("SELECT max(seqno) FROM parallel_apply.position").fetchone() == (ROWS - 1,)
    return moved or bool(prepared(connection))


def stage_with_a_worker_that_dies(stage: SparkStage, unit: Unit, dsn: str) -> StagedUnit:
    """It stands still from within its last statement on, and is killed when that has taken effect."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        staging = in_background(lambda: stage.stage(unit))
        found: list[tuple[int]] = []
        # It sleeps for moments, and looks between them.
        eventually(lambda: bool(found.extend(connection.execute(f"SELECT client_port {SESSION}")) or found))
        ((port,),) = found
        workers = [pid for pid in holders(port, connection.info.port) if pid != os.getpid()]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        connection.execute("UPDATE gate SET closed = false")
        eventually(lambda: is_done(connection))
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        return staging()


@pytest.mark.parametrize(
    "kind", [GroupPart(0, None, prepares=True), Branch(0, is_direct=True)], ids=["prepared", "committed"]
)
def test_what_a_dead_worker_had_done_is_found_by_the_next_attempt(
    spark_server: ServerLease,
    spark_session_id: str,
    target: PostgresTarget,
    target_dsn: str,
    tmp_path: Path,
    kind: UnitKind,
) -> None:
    log_url = str(tmp_path / "log")
    make_log(log_url)
    append(log_url, 0, [[Change("I", key, "v")] for key in range(ROWS)])
    unit = Unit(
        pipeline="demo",
        generation=1,
        kind=kind,
        channels=1,
        token="token",
        after_seqno=-1,
        last_seqno=ROWS - 1,
        row_count=ROWS,
        routing=Routing(channels=1),
    )
    if isinstance(kind, GroupPart):
        assert target.take_part(unit)
    else:
        target.take(0, generation=1, token="token")
    with staging_on(spark_server, spark_session_id, log_url, target_dsn) as stage:
        staged = stage_with_a_worker_that_dies(stage, unit, target_dsn)
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        (table,) = staged.tables
        assert (table.is_prepared, table.is_committed) == (isinstance(kind, GroupPart), isinstance(kind, Branch))
        if table.is_prepared:
            assert prepared(connection) == [table.staging]
            connection.execute(f"COMMIT PREPARED '{table.staging}'")
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone() == (ROWS, ROWS)
        assert staged.row_count == ROWS

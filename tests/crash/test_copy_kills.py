"""The initial copy, killed: the process that leads it at every step, Spark, a worker, the target."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg
import pytest

from airflow_parallel_apply.pipeline.apply.capture_turn import STEP_CHANGES
from airflow_parallel_apply.pipeline.config import Start
from airflow_parallel_apply.pipeline.copy.postgres.parts import PART_BYTES
from tests.crash.scene import Scene, spark_processes, wait_until
from tests.support.rig import execute
from tests.support.step_process import Fault
from tests.support.variants import GATED, gated

COPY = "airflow_parallel_apply.pipeline.copy.postgres"
FIRST_RUN = "airflow_parallel_apply.pipeline.source.postgres.setup.first_run:FirstRun"
ROWS = 40_000
PAUSE_SECONDS = 0.01
LARGE_ROWS = int(os.environ.get("COPY_ROWS") or 5_000_000)


@pytest.fixture
def filled(scene: Scene) -> Scene:
    return _filled(scene)


def _filled(scene: Scene, *, made: bool = True, rows: int = ROWS) -> Scene:
    """A source with a large table and small ones, which the copy is to make at the target, or finds there."""
    scene.rig = scene.rig.having(start=Start.COPY, create_tables=made, channels=2)
    if not made:
        execute(
            scene.rig.target_dsn,
            "CREATE TABLE large (id integer PRIMARY KEY, v text)",
            "CREATE TABLE small (id integer PRIMARY KEY, v text)",
            "CREATE TABLE empty (id integer PRIMARY KEY)",
        )
    execute(
        scene.rig.source_dsn,
        "CREATE TABLE large (id integer PRIMARY KEY, v text)",
        f"INSERT INTO large SELECT i, repeat('x', 60) FROM generate_series(1, {rows}) i",
        "CREATE INDEX by_v ON large (v)",
        "CREATE TABLE small (id serial PRIMARY KEY, v text)",
        "INSERT INTO small (v) SELECT 'a' FROM generate_series(1, 100)",
        "CREATE TABLE empty (id integer PRIMARY KEY)",
    )
    return scene


@contextmanager
def being_written(scene: Scene, *, above: int = ROWS) -> Iterator[None]:
    """The source takes writes, until the block ends."""
    ended = threading.Event()

    def write() -> None:
        number = 0
        with psycopg.connect(scene.rig.source_dsn, autocommit=True) as connection:
            while not ended.wait(PAUSE_SECONDS):
                number += 1
                connection.execute("INSERT INTO large VALUES (%s, 'new')", [above + number])
                connection.execute("UPDATE large SET v = 'changed' WHERE id = %s", [number * 3])
                connection.execute("DELETE FROM large WHERE id = %s", [number * 5])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def require_whole(scene: Scene) -> None:
    """A run goes through, and nothing is missing or doubled."""
    scene.rig.run()
    scene.require_equal()
    slots = scene.rig.rows(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()", side="source"
    )
    assert slots == [(1,)]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(at=f"{COPY}.initial:InitialCopy.rehearse", when="after"), marks=GATED),
        pytest.param(
            Fault(at=f"{FIRST_RUN}._new_stream", when="before"),
            marks=GATED,
        ),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.begin", when="before"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.begin", when="after"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.add_parts", when="before"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.mark", when="before"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.mark", when="after", call=2), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.loaded", when="after"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.making:_add_all", when="after"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.finish", when="before"), marks=GATED),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.finish", when="after"), marks=GATED),
        Fault(at="airflow_parallel_apply.pipeline.capture.first_run:create_log", when="after"),
        pytest.param(
            Fault(at="airflow_parallel_apply.pipeline.run.preparing:register_reader", when="before"),
            marks=GATED,
        ),
        pytest.param(Fault(at=f"{COPY}.record:CopyRecord.register", when="before"), marks=GATED),
    ],
    ids=lambda fault: f"{fault.when} {fault.at.rpartition(':')[2]}",
)
def test_a_copy_killed_at_any_step_ends_whole_with_the_next_run(filled: Scene, fault: Fault) -> None:
    with being_written(filled):
        capture = filled.start_capture("killed", fault=fault)
        assert capture.wait() == -signal.SIGKILL, capture.tail()
    require_whole(filled)


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("victim", ["the server", "a worker"])
def test_spark_killed_in_the_middle_of_a_copy_costs_only_what_it_was_at(spark_scene: Scene, victim: str) -> None:
    _filled(spark_scene, made=False)
    with being_written(spark_scene), psycopg.connect(spark_scene.rig.target_dsn) as locking:
        # Parts of the large table wait for this lock, inside their transactions.
        locking.execute("LOCK TABLE large IN SHARE MODE")
        capture = spark_scene.start_capture("run")
        wait_until(lambda: _waits_for_a_lock(spark_scene), what="Spark to copy")
        _kill(spark_scene, victim)
        locking.rollback()
        assert capture.report() is not None, capture.tail()
    spark_scene.rig = replace(spark_scene.rig, stage=None)
    require_whole(spark_scene)


@pytest.mark.timeout(600)
@gated
def test_a_target_killed_in_the_middle_of_a_copy_costs_only_what_it_had_not_committed(spark_scene: Scene) -> None:
    _filled(spark_scene, made=False)
    spark_scene.spark_directory = None
    with being_written(spark_scene), psycopg.connect(spark_scene.rig.target_dsn) as locking:
        locking.execute("LOCK TABLE small IN SHARE MODE")
        capture = spark_scene.start_capture("run")
        wait_until(lambda: _waits_for_a_lock(spark_scene) and _has_loaded(spark_scene), what="some parts to be there")
        spark_scene.target_server.kill()
        spark_scene.target_server.start()
        with suppress(psycopg.Error):
            locking.rollback()
        assert capture.report() is not None, capture.tail()
    spark_scene.rig = replace(spark_scene.rig, stage=None)
    require_whole(spark_scene)


@pytest.mark.timeout(600)
@gated
def test_a_copy_killed_while_spark_copies_is_made_anew_though_its_tasks_go_on(spark_scene: Scene) -> None:
    _filled(spark_scene, made=False)
    with being_written(spark_scene), psycopg.connect(spark_scene.rig.target_dsn) as locking:
        locking.execute("LOCK TABLE small IN SHARE MODE")
        capture = spark_scene.start_capture("run")
        wait_until(lambda: _waits_for_a_lock(spark_scene), what="Spark to copy")
        first = _copy_id(spark_scene)
        capture.signal(signal.SIGKILL)
        capture.wait()
        again = spark_scene.start_capture("again")
        wait_until(lambda: _copy_id(spark_scene) != first, what="another copy to begin")
        locking.rollback()
        assert again.report() is not None, again.tail()
    spark_scene.rig = replace(spark_scene.rig, stage=None)
    require_whole(spark_scene)


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_large_copy_is_killed_when_half_of_it_is_there_and_ends_whole(spark_scene: Scene) -> None:
    _filled(spark_scene, rows=LARGE_ROWS)
    spark_scene.part_bytes, spark_scene.step_changes = PART_BYTES, STEP_CHANGES
    with being_written(spark_scene, above=LARGE_ROWS):
        capture = spark_scene.start_capture("run")
        wait_until(
            lambda: _copied_rows(spark_scene) > LARGE_ROWS // 2 or not capture.running, timeout=300, what="half of it"
        )
        capture.signal(signal.SIGKILL)
        assert capture.wait() == -signal.SIGKILL, capture.tail()
        again = spark_scene.start_capture("again")
        assert again.report(timeout=300) is not None, again.tail()
        assert _copied_rows(spark_scene) >= LARGE_ROWS
    spark_scene.rig = replace(spark_scene.rig, stage=None)
    require_whole(spark_scene)


def _kill(scene: Scene, victim: str) -> None:
    assert scene.spark_directory is not None
    server, workers = spark_processes(scene.spark_directory)
    if victim == "the server":
        os.kill(server, signal.SIGKILL)
        return
    for worker in workers[1:]:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def _waits_for_a_lock(scene: Scene) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pa:%:copy:%' AND wait_event = 'relation'"
    )
    return scene.rig.rows(query) != [(0,)]


def _copied_rows(scene: Scene) -> int:
    """In parts that are committed; 0 before there is a record of any."""
    if scene.rig.rows("SELECT to_regclass('parallel_apply.copy_part')") == [(None,)]:
        return 0
    ((rows,),) = scene.rig.rows("SELECT coalesce(sum(rows), 0)::bigint FROM parallel_apply.copy_part")
    return int(rows)


def _has_loaded(scene: Scene) -> bool:
    return scene.rig.rows("SELECT count(*) FROM parallel_apply.copy_part WHERE rows > 0") != [(0,)]


def _copy_id(scene: Scene) -> object:
    return scene.rig.rows("SELECT copy_id FROM parallel_apply.copy")

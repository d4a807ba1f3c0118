"""A source that lost what the log has of it is refused, however far it has gone on since; one that crashed goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.integration.source.conftest import Scene, never
from tests.support.clusters import CopiedServer
from tests.support.variants import gated, variants

SETTINGS = {"shared_buffers": "16MB", "wal_writer_delay": "10ms", "max_wal_size": "64MB", "autovacuum": "off"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    with CopiedServer(tmp_path / "data", settings=SETTINGS) as server:
        yield server


@pytest.fixture
def captured(server: PostgresServer, tmp_path: Path) -> Scene:
    """A log that has three transactions of its source."""
    scene = Scene(server.dsn(), PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log")))
    scene.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE SCHEMA far", "CREATE TABLE far.t (v text)")
    scene.source().prepare()
    insert(scene, 0, 3)
    scene.capture()
    return scene


def insert(scene: Scene, first: int, count: int) -> None:
    scene.execute(*(f"INSERT INTO t VALUES ({number}, 'v')" for number in range(first, first + count)))


def go_back(
    server: PostgresServer,
    scene: Scene,
    tmp_path: Path,
    *,
    between: int,
    others: Sequence[str] = (),
    run: Callable[[Scene], object] = Scene.capture,
) -> None:
    """Copy the server's disk, let it go on with some captured inserts and others' writes, and bring the copy back."""
    close(scene)
    kept = keep(server, tmp_path)
    insert(scene, 10, between)
    scene.execute(*others)
    run(scene)
    close(scene)
    bring_back(server, kept)


def keep(server: PostgresServer, tmp_path: Path) -> Path:
    """A copy of the server's disk."""
    server.stop()
    kept = shutil.copytree(server.directory, tmp_path / "kept", symlinks=True)
    server.start()
    return kept


def bring_back(server: PostgresServer, kept: Path) -> None:
    server.stop()
    owner = server.directory.stat()
    shutil.rmtree(server.directory)
    shutil.copytree(kept, server.directory, symlinks=True)
    for path in (server.directory, *server.directory.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.start()


def close(scene: Scene) -> None:
    for source in scene.opened:
        source.close()


@pytest.mark.parametrize("inserts", [18, *(pytest.param(count, marks=pytest.mark.long) for count in (0, 1, 40))])
def test_a_source_restored_from_a_copy_of_its_disk_is_refused(
    server: PostgresServer, captured: Scene, tmp_path: Path, inserts: int
) -> None:
    go_back(server, captured, tmp_path, between=18)
    before = captured.state()
    insert(captured, 100, inserts)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"restored|replaced") as refused:
            captured.capture()
        assert "parallel-apply" in str(refused.value.hint)
        with pytest.raises(SourceError, match=r"restored|replaced"):
            captured.source().has_changes(captured.state().place)
        insert(captured, 200, 1)
        captured.execute("DELETE FROM t WHERE id = 200")
    assert any("restored" in finding.what for finding in captured.source().findings())
    assert captured.state() == before


@gated
@pytest.mark.parametrize("synchronous_commit", variants(["on", "off"], seldom=["on"]))
def test_a_source_that_crashed_goes_on(server: PostgresServer, captured: Scene, synchronous_commit: str) -> None:
    captured.execute(f"ALTER DATABASE postgres SET synchronous_commit = {synchronous_commit}")
    for round_ in range(1, 5):
        insert(captured, 10 * round_, 5)
        if round_ % 2:
            captured.capture()
            # The slot's place is on disk at checkpoints only, so after the crash it stands below the log's.
            captured.execute("CHECKPOINT")
            insert(captured, 10 * round_ + 5, 2)
            captured.capture()
        close(captured)
        server.kill()
        server.start()
        captured.capture(max_changes=1)
    with_rows = [(row["key"], row["operation"]) for row in captured.rows()]
    kept = captured.value("SELECT count(*) FROM t")
    assert len(with_rows) == len(set(with_rows)) == kept
    close(captured)


@gated
def test_a_capture_that_goes_on_at_a_server_that_was_behind_looks_at_it_anew(
    server: PostgresServer, captured: Scene, tmp_path: Path
) -> None:
    """The transactions of others that the look had seen are lost, and their ids are an alteration's now."""
    insert(captured, 10, 9)
    close(captured)
    kept = keep(server, tmp_path)
    captured.execute(*["INSERT INTO far.t VALUES ('lost')"] * 5)
    source = captured.source()
    until = source.offset()
    assert not any(step.done for step in source.capture(until, max_changes=1, cancelled=never))
    bring_back(server, kept)
    captured.execute("ALTER TABLE t ALTER v TYPE text COLLATE \"POSIX\" USING v || '!'")
    while captured.source().offset() < until:
        captured.execute("INSERT INTO far.t VALUES ('instead')")
    with pytest.raises(Unavailable):
        list(source.capture(until, max_changes=1, cancelled=never))
    with pytest.raises(SourceError, match=r"public\.t was rewritten"):
        list(source.capture(until, max_changes=1, cancelled=never))
    close(captured)


@gated
def test_wal_of_others_that_was_lost_does_not_stop_a_pipeline(
    server: PostgresServer, captured: Scene, tmp_path: Path
) -> None:
    go_back(server, captured, tmp_path, between=0)
    insert(captured, 10, 5)
    captured.capture(max_changes=1)
    assert [row["key"] for row in captured.rows()] == ["0", "1", "2", "10", "11", "12", "13", "14"]
    close(captured)


@pytest.mark.parametrize("passing_count", [60, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", variants(["captures", "runs"], seldom=["captures"]))
def test_a_transaction_whose_id_a_lost_one_had_is_not_taken_for_one_of_before(
    server: PostgresServer, captured: Scene, tmp_path: Path, passing_count: int, how: str
) -> None:
    """`passing_count`: others' writes, by which transaction ids pass those that were lost."""

    def run(scene: Scene) -> None:
        for _ in range(2):
            if how == "runs":
                scene.source().prepare()
            scene.capture()

    lost = ["INSERT INTO far.t VALUES ('lost')"] * 30
    go_back(server, captured, tmp_path, between=0, others=lost, run=run)
    captured.execute(
        "ALTER TABLE t ALTER v TYPE text COLLATE \"C\" USING v || '!'",
        "INSERT INTO far.t SELECT repeat('x', 1000) FROM generate_series(1, 100)",
        *["INSERT INTO far.t VALUES ('passes')"] * passing_count,
    )
    insert(captured, 10, 1)
    with pytest.raises(SourceError, match=r"public\.t was rewritten while v changed"):
        run(captured)
    close(captured)


def test_an_idle_pipeline_keeps_little_wal(captured: Scene) -> None:
    captured.execute("INSERT INTO far.t SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
    source = captured.source()
    until_offset = source.offset()
    (step,) = source.capture(until_offset, max_changes=1000, cancelled=never)
    assert (step.done, step.transaction_count) == (True, 0)
    behind = "SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots"
    assert captured.value(behind) < 2**20
    insert(captured, 10, 1)
    captured.capture()
    assert [row["key"] for row in captured.rows()] == ["0", "1", "2", "10"]
    close(captured)


@gated
def test_a_read_goes_on_behind_a_transaction_larger_than_the_read(captured: Scene) -> None:
    captured.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(100, 2099) g")
    insert(captured, 3000, 2)
    captured.capture(max_changes=2)
    captured.capture(max_changes=2)
    keys = [int(row["key"]) for row in captured.rows()]
    assert keys == [0, 1, 2, *range(100, 2100), 3000, 3001]
    assert open_reader(captured.config.log_url).state().resume is not None
    close(captured)

"""The first run makes what is missing, from wherever another one ended; every other run refuses what does not fit."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.capture import first_run
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.source.postgres import PostgresSource
from airflow_parallel_apply.pipeline.source.postgres.setup.first_run import FirstRun
from airflow_parallel_apply.pipeline.source.postgres.setup.objects import PipelineObjects, Record
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot
from tests.integration.source.conftest import Scene
from tests.support.clusters import CopiedServer
from tests.support.variants import gated


def test_the_first_run_says_what_it_made_and_the_next_makes_nothing(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE keyless (a int)", "CREATE UNLOGGED TABLE u (a int)"
    )
    first = scene.source().prepare()
    assert first.tables == ("public.keyless", "public.t")
    assert [sentence.split()[1] for sentence in first.created] == ["publication", "slot", "without", "log"]
    assert "public.keyless" in first.created[2]
    second = scene.source().prepare()
    assert second.created == ()
    assert second.log_id == first.log_id


def test_standbys_may_keep_a_copy_of_the_slot(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    assert scene.value(f"SELECT failover FROM pg_replication_slots WHERE slot_name = '{scene.slot}'")


def test_tables_of_the_product_itself_are_never_followed(scene: Scene) -> None:
    scene.execute("CREATE SCHEMA parallel_apply", "CREATE TABLE parallel_apply.x (a int)", "CREATE TABLE t (id int)")
    assert scene.source(tables=TablePatterns(include=("*",))).prepare().tables == ("public.t",)


def test_relations_are_described_before_anything_is_captured(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE t (a text, id numeric(10,2) PRIMARY KEY, g int GENERATED ALWAYS AS (1) STORED)",
        "CREATE TABLE w (id int PRIMARY KEY, v text)",
        "ALTER TABLE w REPLICA IDENTITY FULL",
    )
    source = scene.source()
    source.prepare()
    described = source.relations()
    assert [(c.name, c.type_name, c.key) for c in described[0].columns] == [
        ("a", "text", False),
        ("id", "numeric(10,2)", True),
    ]
    assert described[1].key_indexes == (0,)
    scene.execute("INSERT INTO t (a, id) VALUES ('x', 1)", "INSERT INTO w VALUES (1, 'x')")
    scene.capture()
    captured = {relation.table: relation.columns for relation in scene.state().relations}
    assert captured == {relation.table: relation.columns for relation in described}


@gated
@pytest.mark.parametrize("point", ["set_record 1", "_new_stream", "create_log", "commit", "set_record 2"])
def test_a_first_run_that_died_anywhere_is_taken_up_by_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    calls = 0

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    set_record = PipelineObjects.set_record

    def crash_at_record(self: PipelineObjects, record: Record) -> None:
        nonlocal calls
        calls += 1
        if calls == int(point[-1]):
            raise KeyboardInterrupt
        set_record(self, record)

    with monkeypatch.context() as patch:
        if point.startswith("set_record"):
            patch.setattr(PipelineObjects, "set_record", crash_at_record)
        elif point == "_new_stream":
            patch.setattr(FirstRun, "_new_stream", crash)
        elif point == "create_log":
            patch.setattr(first_run, "create_log", crash)
        else:
            patch.setattr("airflow_parallel_apply.pipeline.log.writer.DirectoryLogWriter.commit", crash)
        with pytest.raises(KeyboardInterrupt):
            scene.source().prepare()
    scene.opened.pop().close()
    assert len(scene.source().prepare().created) == 3
    scene.execute("INSERT INTO t VALUES (1)")
    scene.capture()
    assert [row["key"] for row in scene.rows()] == ["1"]
    assert scene.source().prepare().created == ()


def test_tables_with_rows_are_refused_by_name_unless_the_user_says_that_both_sides_are_equal(scene: Scene) -> None:
    scene.execute("CREATE TABLE empty (id int)", "CREATE TABLE filled AS SELECT 1 AS id")
    with pytest.raises(ConfigurationError, match=r"public\.filled") as refused:
        scene.source().prepare()
    assert "public.empty" not in str(refused.value)
    assert scene.value("SELECT count(*) FROM pg_publication") == 0
    assert scene.source(start=Start.EQUAL).prepare().tables == ("public.empty", "public.filled")


def test_a_row_that_came_before_the_slot_is_noticed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    create = FirstRun._new_stream

    def insert_first(self: FirstRun, *arguments: object) -> int:
        scene.execute("INSERT INTO t VALUES (1)")
        return create(self, *arguments)

    monkeypatch.setattr(FirstRun, "_new_stream", insert_first)
    with pytest.raises(ConfigurationError, match=r"public\.t"):
        scene.source().prepare()
    assert scene.value(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{scene.slot}'") == 0
    assert scene.value("SELECT count(*) FROM pg_publication") == 0


@pytest.mark.usefixtures("new_sessions")
def test_the_slot_of_another_database_of_the_server_is_left_alone(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE DATABASE other")
    other = make_conninfo(scene.dsn, dbname="other")
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [scene.slot])
    with pytest.raises(ConfigurationError, match="in the database other"):
        scene.source().prepare()
    (finding,) = scene.source().findings()
    assert "another name" in finding.note
    assert scene.value(f"SELECT database FROM pg_replication_slots WHERE slot_name = '{scene.slot}'") == "other"
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [scene.slot])
    scene.execute("DROP DATABASE other")


def test_patterns_that_match_nothing_are_named(scene: Scene) -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.\*"):
        scene.source(tables=TablePatterns(include=("shop.*",))).prepare()


@gated
def test_a_new_empty_table_is_added_and_one_with_rows_refused(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    assert scene.source().prepare().created == (f"Added public.fresh to publication {scene.slot}.",)
    scene.execute("INSERT INTO fresh VALUES (1)")
    scene.capture()
    assert [row["table"] for row in scene.rows()] == ["public.fresh"]
    scene.execute("CREATE TABLE late AS SELECT 1 AS id")
    with pytest.raises(ConfigurationError, match=r"public\.late"):
        scene.source().prepare()


def test_a_slot_is_not_taken_from_the_log_it_feeds(scene: Scene, tmp_path: Path) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    with pytest.raises(SourceError, match="which is not at"):
        scene.source(log_url=str(tmp_path / "mistyped")).prepare()
    scene.capture()


@gated
def test_another_servers_log_is_refused(scene: Scene, target_dsn: str, tmp_path: Path) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    other = _replace_dsn(scene, target_dsn)
    other.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(LogError, match="is another source's log: its server"):
        other.source().prepare()
    with pytest.raises(LogError, match=f"its slot is {scene.slot}"):
        scene.source(pipeline="another").prepare()
    other.source(log_url=str(tmp_path / "other")).prepare()
    try:
        with pytest.raises(LogError, match="its log is"):
            other.source().prepare()
    finally:
        other.close()


def _replace_dsn(scene: Scene, dsn: str) -> Scene:
    return Scene(dsn, scene.config)


def test_an_unreachable_server_is_named_without_its_password(tmp_path: Path) -> None:
    config = PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log"))
    endpoint = Endpoint(conn_id="source", url="host=127.0.0.1 port=1 user=me password=hunter2 dbname=shop")
    source = Capture(PostgresSource(endpoint, config), config)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/shop") as refused:
        source.prepare()
    assert "hunter2" not in str(refused.value)
    assert refused.value.hint


def test_missing_rights_are_named_with_the_command_that_gives_them(scene: Scene) -> None:
    role = f"{scene.config.pipeline}_reader"
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE ROLE {role} LOGIN")
    limited = Scene(scene.dsn.replace("user=postgres", f"user={role}"), scene.config)
    with pytest.raises(ConfigurationError, match=f'ALTER ROLE "{role}" REPLICATION'):
        limited.source().prepare()
    scene.execute(f"ALTER ROLE {role} REPLICATION")
    with pytest.raises(ConfigurationError, match="GRANT CREATE ON DATABASE"):
        limited.source().prepare()
    scene.execute(f"GRANT CREATE ON DATABASE {scene.config.pipeline} TO {role}")
    with pytest.raises(ConfigurationError, match=r"does not own.*public\.t"):
        limited.source().prepare()
    scene.execute(f"ALTER TABLE t OWNER TO {role}")
    limited.source().prepare()
    scene.execute("INSERT INTO t VALUES (1)")
    limited.capture()
    assert [row["key"] for row in scene.rows()] == ["1"]
    for source in limited.opened:
        source.close()


def test_a_server_without_logical_wal_is_told_how_to_mend_it(tmp_path: Path) -> None:
    with CopiedServer(tmp_path / "data", settings={"wal_level": "replica", "fsync": "off"}) as server:
        scene = Scene(server.dsn(), PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log")))
        with pytest.raises(ConfigurationError, match="ALTER SYSTEM SET wal_level = 'logical'"):
            scene.source().prepare()


@gated
def test_a_slot_that_lost_its_wal_is_refused_and_an_older_server_serves(tmp_path: Path) -> None:
    settings = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB", "fsync": "off"}
    with CopiedServer(tmp_path / "data", version=16, settings=settings) as server:
        scene = Scene(server.dsn(), PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log")))
        scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
        scene.source().prepare()
        scene.execute("INSERT INTO t VALUES (1)")
        scene.capture()
        assert [row["key"] for row in scene.rows()] == ["1"]
        for _ in range(4):
            scene.execute("SELECT pg_switch_wal()", "CREATE TABLE pad (a int)", "DROP TABLE pad", "CHECKPOINT")
        assert scene.value("SELECT wal_status FROM pg_replication_slots") == "lost"
        with pytest.raises(SourceError, match="lost WAL"):
            scene.capture()


@gated
def test_a_killed_server_is_a_reason_to_try_again_and_loses_nothing(tmp_path: Path) -> None:
    server = CopiedServer(tmp_path / "data")
    with server:
        scene = Scene(server.dsn(), PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log")))
        scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = scene.source()
        source.prepare()
        scene.execute("INSERT INTO t VALUES (1)")
        scene.capture()
        advanced = scene.state().captured_offset
        scene.execute("INSERT INTO t VALUES (2)")
        server.kill()
        with pytest.raises(Unavailable):
            source.offset()
        server.start()
        # The slot's place is written at checkpoints only, so after a crash it may stand below the log's.
        state = Slot(source._session, name=scene.slot, publication=scene.slot).state()
        assert state is not None
        assert state.confirmed_lsn <= advanced
        scene.capture()
        assert [row["key"] for row in scene.rows()] == ["1", "2"]
        source.close()

"""A slot that does not go on from what the log holds is refused, with what leads on where something does."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.setup import first_run
from airflow_parallel_apply.pipeline.source.postgres.setup.moment import Moment, new_slot
from tests.integration.source.conftest import Scene
from tests.support.clusters import CopiedServer
from tests.support.rig import execute
from tests.support.variants import gated


def test_a_dropped_slot_is_refused(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(f"SELECT pg_drop_replication_slot('{scene.slot}')")
    for use in (
        lambda: scene.source().prepare(),
        scene.capture,
        lambda: scene.source().has_changes(scene.state().place),
    ):
        with pytest.raises(SourceError, match="is gone: changes are missing"):
            use()


def test_a_connection_to_another_database_of_the_server_is_told_as_such(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    elsewhere = Scene(make_conninfo(scene.dsn, dbname="postgres"), scene.config)
    with pytest.raises(SourceError, match=r"is that of the database .* Does the connection lead to"):
        elsewhere.source().has_changes(scene.state().place)
    elsewhere.close()


def test_a_first_run_whose_slot_another_database_gets_meanwhile_is_told_whose_it_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    elsewhere = make_conninfo(scene.dsn, dbname="postgres")

    def overtaken(session: Session, name: str) -> AbstractContextManager[Moment]:
        execute(elsewhere, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        return new_slot(session, name)

    monkeypatch.setattr(first_run, "new_slot", overtaken)
    try:
        with pytest.raises(Unavailable, match=r"slot \S+ was made by somebody else a moment ago.*tried again"):
            scene.source().prepare()
        with pytest.raises(ConfigurationError, match=r"is that of a pipeline in the database postgres.*another slot"):
            scene.source().prepare()
    finally:
        execute(elsewhere, f"SELECT pg_drop_replication_slot('{scene.slot}')")


def test_a_recreated_slot_is_refused(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(
        f"SELECT pg_drop_replication_slot('{scene.slot}')",
        "INSERT INTO t VALUES (1)",
        f"SELECT pg_create_logical_replication_slot('{scene.slot}', 'pgoutput')",
    )
    for use in (lambda: scene.source().prepare(), scene.capture):
        with pytest.raises(SourceError, match="above what the log has captured"):
            use()
    assert scene.state().last_seqno == -1


@gated
def test_a_slot_that_was_switched_to_two_phase_is_switched_back_as_the_hint_says(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    with psycopg.connect(make_conninfo(scene.dsn, replication="database"), autocommit=True) as replication:
        replication.execute(f"ALTER_REPLICATION_SLOT {scene.slot} (TWO_PHASE true)".encode())
    scene.execute(
        "BEGIN", "INSERT INTO t VALUES (1)", f"PREPARE TRANSACTION '{scene.slot}'", "INSERT INTO t VALUES (2)"
    )
    (found,) = errors(scene.source().findings())
    with pytest.raises(SourceError, match="was switched to TWO_PHASE") as refused:
        scene.capture()
    hint = refused.value.hint or ""
    assert found.note == hint
    told = re.search(r"Run (ALTER_REPLICATION_SLOT .*?\)) at the source", hint)
    assert told is not None
    with psycopg.connect(make_conninfo(scene.dsn, replication="database"), autocommit=True) as replication:
        replication.execute(told[1].encode())
    scene.capture()
    scene.execute(f"COMMIT PREPARED '{scene.slot}'")
    scene.capture()
    assert scene.contents() == {"public.t": [("1",), ("2",)]}


def test_a_slot_that_somebody_else_moved_is_refused(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1)")
    scene.execute(f"SELECT pg_replication_slot_advance('{scene.slot}', pg_current_wal_lsn())")
    with pytest.raises(SourceError, match="advanced by another reader"):
        scene.capture()


@pytest.mark.long
def test_a_slot_that_the_server_gave_up_because_nobody_read_it_is_told_with_that_setting(tmp_path: Path) -> None:
    with CopiedServer(tmp_path / "data", settings={"idle_replication_slot_timeout": "1s"}) as server:
        scene = Scene(server.dsn(), PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log")))
        scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
        scene.source().prepare()
        deadline = time.monotonic() + 120
        while scene.value("SELECT wal_status FROM pg_replication_slots") != "lost":
            assert time.monotonic() < deadline
            scene.execute("CHECKPOINT")
        with pytest.raises(SourceError, match="lost WAL that it still needed") as refused:
            scene.capture()
        assert "idle_replication_slot_timeout was too small" in (refused.value.hint or "")
        scene.close()

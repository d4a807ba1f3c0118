"""Commits that wait for a synchronous standby: the slot sends them, and nobody sees them yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.source.postgres import session
from airflow_parallel_apply.pipeline.source.postgres.slot.visibility import Visibility
from tests.integration.source.conftest import EVERYTHING, Scene, never
from tests.support.ddl_messages import ddl, install
from tests.support.variants import gated, variants

CASES = {
    "a column": ["ALTER TABLE t ADD c integer DEFAULT 7", "INSERT INTO t VALUES (10, 1, 1)"],
    "values": ["ALTER TABLE t ALTER a TYPE bigint USING a * 2", "INSERT INTO t VALUES (10, 1)"],
    "a message": ["ALTER TABLE t ALTER a TYPE bigint", ddl("ALTER TABLE t ALTER a TYPE bigint")],
}


def setting(server: PostgresServer, standbys: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standbys}'".encode())
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute("SHOW synchronous_standby_names").fetchone() != (standbys,):
            time.sleep(0.01)


@contextmanager
def unconfirmed(server: PostgresServer, scene: Scene, statements: list[str]) -> Iterator[None]:
    """A transaction in the WAL that no standby confirms."""
    committing = threading.Thread(
        target=scene.transaction, args=("SET LOCAL synchronous_commit = on", *statements), daemon=True
    )
    setting(server, "nobody")
    try:
        committing.start()
        while not scene.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            assert committing.is_alive()
            time.sleep(0.01)
        yield
    finally:
        setting(server, "")
        committing.join()


@gated
@pytest.mark.parametrize("case", variants(CASES, seldom=["values"]))
def test_a_definition_that_nobody_sees_yet_is_waited_for(
    scene: Scene, source_server: PostgresServer, source_database: str, case: str
) -> None:
    install(scene.dsn)
    scene.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, a integer)",
        f"ALTER DATABASE {source_database} SET synchronous_commit = local",
    )
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1, 1)")
    scene.capture()
    with unconfirmed(source_server, scene, CASES[case]):
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"is in its WAL, and nobody sees it yet"):
                scene.capture()
        assert len(scene.rows()) == 1
    if case == "values":
        with pytest.raises(SourceError, match=r"public\.t was rewritten while a changed"):
            scene.capture()
        return
    scene.capture()
    scene.source().prepare()
    assert all(relation.is_numbered for relation in scene.state().relations)


def test_what_a_look_proves_holds_only_for_commits_that_it_has_seen(
    scene: Scene, source_server: PostgresServer, source_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is gone at once, and whoever waits is told by the checkpointer, which may be busy."""
    looked = Visibility.now

    def now(connection: psycopg.Connection[Any]) -> Visibility:
        visibility = looked(connection)
        visibility.is_confirmed = True
        return visibility

    monkeypatch.setattr(Visibility, "now", now)
    scene.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, a integer)",
        "CREATE TABLE u (id integer PRIMARY KEY)",
        f"ALTER DATABASE {source_database} SET synchronous_commit = local",
    )
    scene.source().prepare()
    scene.execute("INSERT INTO u VALUES (1)", "INSERT INTO u VALUES (2)")
    with unconfirmed(source_server, scene, CASES["values"]):
        source = scene.source()
        until = source.offset()
        (step,) = source.capture(until, max_changes=1, cancelled=never)
        assert not step.done
    with pytest.raises(Unavailable, match="nobody sees it yet"):
        list(source.capture(until, max_changes=EVERYTHING, cancelled=never))
    with pytest.raises(SourceError, match=r"public\.t was rewritten while a changed"):
        list(source.capture(until, max_changes=EVERYTHING, cancelled=never))


def test_a_lock_that_it_keeps_meanwhile_is_waited_for_in_words(
    scene: Scene, source_server: PostgresServer, source_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session._AT_SOURCE, "lock_timeout", "300ms")
    scene.execute(
        "CREATE TABLE t (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF t FOR VALUES FROM (0) TO (10)",
        f"ALTER DATABASE {source_database} SET synchronous_commit = local",
    )
    scene.source().prepare()
    with (
        unconfirmed(source_server, scene, ["LOCK TABLE part", "INSERT INTO t VALUES (1)"]),
        pytest.raises(Unavailable, match="lock timeout") as told,
    ):
        scene.capture()
    assert "look at pg_stat_activity and pg_locks" in (told.value.hint or "")
    scene.source().prepare()
    scene.capture()
    assert scene.contents() == {"public.t": [("1",)]}


@gated
def test_rows_that_nobody_sees_yet_are_captured_once_they_are_seen(
    scene: Scene, source_server: PostgresServer, source_database: str
) -> None:
    scene.execute(
        "CREATE TABLE t (id integer PRIMARY KEY)", f"ALTER DATABASE {source_database} SET synchronous_commit = local"
    )
    scene.source().prepare()
    with unconfirmed(source_server, scene, ["INSERT INTO t VALUES (1)"]):
        scene.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(Unavailable):
            scene.capture()
    scene.capture()
    assert scene.contents() == {"public.t": [("1",), ("2",)]}


@gated
def test_what_was_answered_before_does_not_stand_for_a_look(
    scene: Scene, source_server: PostgresServer, source_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session._AT_SOURCE, "lock_timeout", "300ms")
    scene.execute(
        "CREATE TABLE t (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE rest PARTITION OF t DEFAULT",
        f"ALTER DATABASE {source_database} SET synchronous_commit = local",
    )
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1), (20)")
    scene.capture()
    source = scene.source()
    source.prepare()
    with unconfirmed(source_server, scene, ["TRUNCATE part"]), pytest.raises(Unavailable, match="lock timeout"):
        list(source.capture(source.offset(), max_changes=100, cancelled=lambda: False))
    with pytest.raises(SourceError, match="part was truncated"):
        scene.capture()

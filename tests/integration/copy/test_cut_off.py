"""A copy that was cut off leaves something behind, and the next one begins anew."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import sql

from airflow_parallel_apply.pipeline.capture import first_run
from airflow_parallel_apply.pipeline.copy.postgres.load import send
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    OwnershipLost,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from tests.support.copying import AWKWARD, FILLED, Breaking, copying_rig, killed, left_at_source, require_equal
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return copying_rig(source_dsn, target_dsn, tmp_path, monkeypatch)


def test_a_copy_that_was_cut_off_begins_anew_and_doubles_nothing(rig: Rig) -> None:
    rig.both(*AWKWARD)
    rig.write(*FILLED)
    broken = replace(rig, copier=lambda rig: Breaking(source=rig.source, target=rig.target, threads=1, after=4))
    with pytest.raises(OwnershipLost, match="cut"):
        broken.prepare()
    assert left_at_source(rig)[0] == [], "a slot that nobody will read is left"
    assert [done for (done,) in rig.rows("SELECT count(rows) FROM parallel_apply.copy_part")] == [4]
    rig.write("DELETE FROM shop.orders WHERE id < 1000")
    told = rig.prepare().created
    assert any("emptied what a copy that was cut off had filled" in line for line in told), told
    require_equal(rig)
    rig.write(*FILLED[:1])
    rig.run()
    require_equal(rig)


@gated
def test_tables_that_a_cut_copy_made_are_made_anew(rig: Rig) -> None:
    execute(rig.source_dsn, *AWKWARD, *FILLED)
    rig = rig.having(create_tables=True)
    broken = replace(rig, copier=lambda rig: Breaking(source=rig.source, target=rig.target, threads=1, after=4))
    with pytest.raises(OwnershipLost, match="cut"):
        broken.prepare()
    execute(rig.source_dsn, "ALTER TABLE shop.orders ADD later integer DEFAULT 5")
    rig.prepare()
    require_equal(rig)


@gated
def test_a_cut_copy_empties_only_what_it_filled_itself(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE u (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t SELECT generate_series(1, 10000)")
    broken = replace(rig, copier=lambda rig: Breaking(source=rig.source, target=rig.target, threads=1, after=1))
    with pytest.raises(OwnershipLost, match="cut"):
        broken.prepare()
    execute(rig.target_dsn, "INSERT INTO u VALUES (1)")
    with pytest.raises(TargetError, match=r"public\.u has rows"):
        rig.prepare()
    assert rig.rows("SELECT count(*) FROM u") == [(1,)]


@gated
def test_a_copy_whose_log_was_never_made_is_copied_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t SELECT generate_series(1, 100)")
    with monkeypatch.context() as patched:
        patched.setattr(first_run, "create_log", killed)
        with pytest.raises(KeyboardInterrupt):
            rig.prepare()
    rig.write("DELETE FROM t WHERE id <= 50")
    rig.run()
    require_equal(rig)
    assert rig.rows("SELECT count(*) FROM t") == [(50,)]


@gated
def test_a_finished_copy_is_not_repeated_when_only_its_registration_was_cut_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t SELECT generate_series(1, 100)")
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "register_reader", killed)
        with pytest.raises(KeyboardInterrupt):
            rig.prepare()
    rig.write("DELETE FROM t WHERE id <= 50")
    unused = replace(rig, copier=lambda rig: Breaking(source=rig.source, target=rig.target, after=0))
    unused.run()
    require_equal(rig)


@gated
def test_a_target_that_lost_its_copy_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t VALUES (1)")
    rig.prepare()
    execute(rig.target_dsn, "DROP SCHEMA parallel_apply CASCADE", "TRUNCATE t")
    with pytest.raises(ConfigurationError, match="does not hold"):
        rig.prepare()


@gated
@pytest.mark.parametrize("creates", [True, False])
def test_a_cut_copy_leaves_tables_alone_that_have_the_oids_of_its_own_in_a_restored_target(
    rig: Rig, *, creates: bool
) -> None:
    made = "CREATE TABLE t (id integer PRIMARY KEY)"
    rig = rig.having(create_tables=creates)
    execute(rig.source_dsn, made, "INSERT INTO t SELECT generate_series(1, 10000)")
    execute(rig.target_dsn, *([] if creates else [made]))
    broken = replace(rig, copier=lambda rig: Breaking(source=rig.source, target=rig.target, threads=1, after=1))
    with pytest.raises(OwnershipLost, match="cut"):
        broken.prepare()
    # A dump that is restored gives each table another oid, and this one to somebody else's.
    execute(
        rig.target_dsn,
        "ALTER TABLE t RENAME TO precious",
        *([] if creates else [made]),
    )
    kept = rig.rows("SELECT count(*) FROM precious")
    assert kept != [(0,)]
    rig.prepare()
    assert rig.rows("SELECT count(*) FROM precious") == kept
    assert rig.rows("SELECT count(*) FROM t") == [(10000,)]


@pytest.mark.parametrize("sent_before", [0, pytest.param(1, marks=pytest.mark.long), 100_000])
def test_a_connection_that_breaks_without_a_word_is_no_refusal(target_dsn: str, sent_before: int) -> None:
    session = Session(target_dsn, pipeline="p")
    session.connection().execute("CREATE TABLE t (v text)")

    def broken_off() -> None:
        with socket.socket(fileno=os.dup(session.connection().fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)

    def pieces() -> Iterator[tuple[int, bytes]]:
        for _ in range(sent_before):
            yield 1, b"v\n"
        broken_off()
        yield 1, b"v\n"

    connection = session.connection()
    if not sent_before:
        broken_off()
    with pytest.raises(Unavailable), session.errors("copy"):
        send(connection, sql.SQL("COPY t FROM STDIN"), pieces())

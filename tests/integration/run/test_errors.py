"""Trouble from outside is one line: what, where, what to do. No position moves, and once it is fixed a run goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    FatalError,
    LogError,
    ParallelApplyError,
    PlanError,
    SourceError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """A pipeline that has applied ten rows, and has more to do."""
    config = PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log"), channels=2)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.prepare()
    made.write("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 10) n")
    made.run()
    made.write("UPDATE t SET v = 'b'")
    return made


def refused(rig: Rig, kind: type[ParallelApplyError], *says: str, step: Callable[[], object] | None = None) -> None:
    """The step (a whole run) fails with one line that has all of it and a hint, and no position moves."""
    before = positions(rig)
    with pytest.raises(kind) as caught:
        (step or rig.run)()
    line = str(caught.value)
    assert "\n" not in line
    for word in (*says, "Hint: "):
        assert word in line
    assert "password" not in line
    assert positions(rig) == before


def positions(rig: Rig) -> list[tuple[int, int]]:
    return rig.rows("SELECT channel, seqno FROM parallel_apply.position ORDER BY channel")


def goes_on(rig: Rig) -> None:
    rig.run()
    assert rig.comparison().equal


def broken(rig: Rig, run_id: str = "broken") -> run.ClosedRun:
    """A run whose lanes meet the trouble; `close` tells of it."""
    rig.capture(run_id)
    opened = run.open_run(rig.config, rig.source, rig.target, owner=run_id, run_id=run_id)
    return run.close_run(opened, rig.config, rig.target, rig.apply(opened))


def test_an_unreachable_target_is_named_and_to_be_tried_again(rig: Rig) -> None:
    away = replace(rig, target_dsn="postgresql://u:secret@127.0.0.1:1/nowhere")
    refused(rig, Unavailable, "target", "127.0.0.1", step=away.prepare)
    goes_on(rig)


@gated
def test_a_target_database_that_does_not_exist_is_a_wrong_connection(rig: Rig, target_server: PostgresServer) -> None:
    away = replace(rig, target_dsn=target_server.dsn("nowhere"))
    refused(rig, ConfigurationError, "nowhere", "Check the connection", step=away.prepare)


@gated
@pytest.mark.parametrize("side", ["target", pytest.param("source", marks=pytest.mark.long)])
def test_a_database_that_takes_no_connections_is_told_with_what_opens_it(rig: Rig, side: str) -> None:
    dsn = rig.target_dsn if side == "target" else rig.source_dsn
    name, beside = conninfo_to_dict(dsn)["dbname"], make_conninfo(dsn, dbname="postgres")
    execute(beside, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        with pytest.raises(Unavailable, match=r"not currently accepting.*ALLOW_CONNECTIONS true"):
            rig.run()
    finally:
        execute(beside, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    goes_on(rig)


@gated
@pytest.mark.parametrize("side", ["target", pytest.param("source", marks=pytest.mark.long)])
def test_an_event_trigger_that_lets_nobody_in_is_told_with_what_disables_it(rig: Rig, side: str) -> None:
    dsn = rig.target_dsn if side == "target" else rig.source_dsn
    execute(
        dsn,
        "CREATE FUNCTION nobody() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not today''; END'",
        "CREATE EVENT TRIGGER doorkeeper ON login EXECUTE FUNCTION nobody()",
    )
    with pytest.raises(Unavailable, match=r"not today.*event_triggers=off.*ALTER EVENT TRIGGER … DISABLE"):
        rig.run()
    execute(make_conninfo(dsn, options="-c event_triggers=off"), "ALTER EVENT TRIGGER doorkeeper DISABLE")
    goes_on(rig)


@gated
def test_a_target_without_a_connection_to_spare_is_told_as_such_and_to_be_tried_again(rig: Rig) -> None:
    execute(rig.target_dsn, "CREATE ROLE crowd LOGIN CONNECTION LIMIT 0")
    try:
        crowded = replace(rig, target_dsn=make_conninfo(rig.target_dsn, user="crowd"))
        refused(rig, Unavailable, "too many connections", "CONNECTION LIMIT", step=crowded.run)
    finally:
        execute(rig.target_dsn, "DROP ROLE crowd")


@gated
def test_a_column_that_the_target_lost_is_named(rig: Rig) -> None:
    execute(rig.target_dsn, "ALTER TABLE t RENAME COLUMN v TO w")
    refused(rig, TargetError, "public.t lacks the column v")
    execute(rig.target_dsn, "ALTER TABLE t RENAME COLUMN w TO v")
    goes_on(rig)


@gated
def test_a_table_that_the_target_loses_under_the_lanes_fails_the_run_once(rig: Rig) -> None:
    rig.capture("broken")
    opened = run.open_run(rig.config, rig.source, rig.target, owner="broken", run_id="broken")
    execute(rig.target_dsn, "ALTER TABLE t RENAME TO u")
    reports = rig.apply(opened)
    refused(
        rig, TargetError, "is called public.u at the target", "public.t", "seqno 1",
        step=lambda: run.close_run(opened, rig.config, rig.target, reports),
    )  # fmt: skip
    execute(rig.target_dsn, "ALTER TABLE u RENAME TO t")
    goes_on(rig)


@gated
def test_a_privilege_that_the_target_took_back_is_named(rig: Rig, target_server: PostgresServer) -> None:
    execute(
        rig.target_dsn,
        "DROP ROLE IF EXISTS applier",
        "CREATE ROLE applier LOGIN PASSWORD 'secret'",
        "GRANT ALL ON SCHEMA parallel_apply TO applier",
        "GRANT ALL ON ALL TABLES IN SCHEMA parallel_apply TO applier",
        "GRANT SELECT, INSERT, DELETE ON t TO applier",
    )
    parts = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)
    dsn = psycopg.conninfo.make_conninfo(**{**parts, "user": "applier", "password": "secret"})
    try:
        refused(rig, TargetError, "public.t", "UPDATE", "TRUNCATE", step=replace(rig, target_dsn=dsn).prepare)
    finally:
        execute(rig.target_dsn, "DROP OWNED BY applier", "DROP ROLE applier")


@pytest.fixture
def reader(rig: Rig) -> Iterator[Rig]:
    """The same pipeline, whose role at the source has the rights of the tables' owner."""
    parts = conninfo_to_dict(rig.source_dsn)
    role = f"{parts['dbname']}_reader"
    rig.write(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'", f"GRANT {parts['user']} TO {role}")
    yield replace(rig, source_dsn=make_conninfo(rig.source_dsn, user=role, password="secret"))
    rig.write(f"REASSIGN OWNED BY {role} TO CURRENT_USER", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def given_back(owner: Rig, reader: Rig, says: str, step: Callable[[], object]) -> None:
    """The step is refused, and the hint has the statement that gives the role at the source what it lacks."""
    with pytest.raises(ConfigurationError, match=says) as denied:
        step()
    (statement,) = re.findall(r"Run ((?:GRANT|ALTER) .*?) at the source", str(denied.value))
    owner.write(statement)
    step()
    goes_on(reader)


@gated
def test_a_function_that_the_source_took_back_is_granted(rig: Rig, reader: Rig) -> None:
    rig.write(
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC, CURRENT_USER",
        "ALTER TABLE t SET (fillfactor = 50)",
    )
    given_back(rig, reader, "permission denied for function", reader.run)


@gated
def test_a_publication_that_another_role_owns_is_given_back_before_a_copy(rig: Rig, reader: Rig) -> None:
    publication = "ALTER PUBLICATION parallel_apply_p"
    rig.write(f"{publication} DROP TABLE t", f"{publication} OWNER TO pg_monitor")

    def copy() -> None:
        recopy_tables(reader.config, reader.source, reader.target, [("public", "t")], report=lambda progress: None)

    given_back(rig, reader, "must be owner of publication", copy)


@gated
def test_a_slot_that_is_gone_is_refused_since_changes_are_missing(rig: Rig) -> None:
    execute(rig.source_dsn, "SELECT pg_drop_replication_slot('parallel_apply_p')")
    refused(rig, SourceError, "slot parallel_apply_p", "changes are missing")


@gated
def test_a_recreated_slot_is_refused_since_changes_are_missing(rig: Rig) -> None:
    execute(
        rig.source_dsn,
        "SELECT pg_drop_replication_slot('parallel_apply_p')",
        "SELECT pg_create_logical_replication_slot('parallel_apply_p', 'pgoutput')",
    )
    refused(rig, SourceError, "slot parallel_apply_p", "recreated")


@gated
def test_another_sources_log_is_refused_before_a_slot_is_made_for_it(
    rig: Rig, target_server: PostgresServer, tmp_path: Path
) -> None:
    """The other source's pipeline has the same name, and a log of its own."""
    target_server.create_database("other_source")
    other = replace(
        rig,
        source_dsn=target_server.dsn("other_source"),
        config=replace(rig.config, log_url=str(tmp_path / "other")),
    )
    execute(other.source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    refused(rig, ConfigurationError, "has applied log", str(tmp_path / "other"), step=other.prepare)
    assert other.rows("SELECT slot_name FROM pg_replication_slots WHERE database = 'other_source'") == []
    goes_on(rig)


@gated
def test_the_same_log_with_another_source_is_refused(rig: Rig, target_server: PostgresServer) -> None:
    target_server.create_database("stranger")
    other = replace(rig, source_dsn=target_server.dsn("stranger"))
    execute(other.source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    refused(rig, FatalError, rig.config.log_url, step=other.prepare)
    goes_on(rig)


@gated
def test_a_corrupt_segment_is_named_and_nothing_of_it_is_applied(rig: Rig) -> None:
    rig.capture("broken")
    newest = max(Path(rig.config.log_url, "segments").glob("*.rows.parquet"), key=lambda path: path.stat().st_mtime)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:200] + b"\xff\x00\xff" + whole[203:])
    refused(rig, FatalError, newest.name, "does not match its checksum", step=lambda: broken(rig))
    newest.write_bytes(whole)
    goes_on(rig)


@gated
def test_other_channels_are_refused_while_positions_differ(rig: Rig) -> None:
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = seqno - 1 WHERE channel = 1")
    refused(rig, PlanError, "channels 2 to 4", "0: 0, 1: -1", step=rig.having(channels=4).prepare)
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = seqno + 1 WHERE channel = 1")
    goes_on(rig.having(channels=4))


@gated
def test_a_lane_that_does_not_see_the_log_says_where_it_looked(rig: Rig, tmp_path: Path) -> None:
    rig.capture("unshared")
    opened = run.open_run(rig.config, rig.source, rig.target, owner="unshared", run_id="unshared")
    elsewhere = rig.having(log_url=str(tmp_path / "elsewhere"))
    refused(
        rig, LogError, str(tmp_path / "elsewhere"), "every worker sees",
        step=lambda: run.apply(
            opened, elsewhere.config, rig.source, rig.target, lane=0, stage=None, signals=None  # type: ignore[arg-type]
        ),
    )  # fmt: skip
    rig.apply(opened)
    run.close_run(opened, rig.config, rig.target, [])
    assert rig.comparison().equal


@gated
def test_a_bound_that_the_source_has_not_reached_is_refused_and_not_frozen(rig: Rig) -> None:
    refused(rig, ConfigurationError, "until", "FFFF/0", step=lambda: rig.run("early", until="FFFF/0"))
    rig.run("early")
    assert rig.comparison().equal


def test_a_bound_that_is_no_offset_is_refused_before_anything_is_made(rig: Rig) -> None:
    fresh = rig.having(pipeline="fresh", log_url=f"{rig.config.log_url}_fresh")
    refused(fresh, ConfigurationError, "until", "yesterday", step=lambda: fresh.run("early", until="yesterday"))
    assert not Path(fresh.config.log_url).exists()


@gated
def test_a_stop_without_a_run_says_that_there_is_nothing_to_stop(rig: Rig) -> None:
    before = positions(rig)
    with pytest.raises(FatalError, match=re.escape("nothing to stop")):
        run.request_stop("p", rig.target)
    assert positions(rig) == before


@gated
def test_a_stop_of_a_run_that_has_failed_says_so_and_waits_for_nothing(rig: Rig) -> None:
    execute(rig.target_dsn, "ALTER TABLE t ADD CONSTRAINT narrow CHECK (v <> 'b') NOT VALID")
    rig.capture("failing")
    plan(rig.config, rig.target)
    opened = rig.open("failing")
    rig.apply(opened)
    refused(rig, TargetError, "has failed", "narrow", step=lambda: run.request_stop("p", rig.target))
    told = CliRunner().invoke(app, ["stop", "--pipeline", "p", "--target", rig.target_dsn, "--wait", "600"])
    assert (told.exit_code, "has failed" in told.output) == (1, True), told.output
    with pytest.raises(TargetError, match="narrow"):
        rig.close(opened)


@gated
def test_a_close_for_which_open_has_left_nothing_says_what_leads_on(rig: Rig) -> None:
    """As after `airflow db clean`, or where somebody marked open as success."""
    with pytest.raises(FatalError, match=r"its XComs were removed .* Hint: Clear open with everything downstream"):
        run.close_run(None, rig.config, rig.target, [])
    rig.run()
    assert rig.comparison().equal

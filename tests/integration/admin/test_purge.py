"""A log is purged below what every pipeline that reads it has on its target's disk, and never beyond."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin.purge import Purged, purge_log
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, Unavailable
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.readers import forget_reader, read_readers
from airflow_parallel_apply.pipeline.target.open import open_target
from airflow_parallel_apply.router.commands import app as router
from airflow_parallel_apply.router.plan import plan
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """Five captures of one transaction each, and so five segments and five epochs."""
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), channels=2, lanes=1, start=Start.EMPTY)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.prepare()
    for number in range(5):
        made.write(f"INSERT INTO t SELECT {number} * 100 + n, 'a' FROM generate_series(1, 10) n")
        made.capture(f"early {number}")
        plan(made.config, made.target)
    made.run("early 4")
    return made


def purge(rig: Rig, *others: str, keep: int = 0) -> Purged:
    ends = [rig.target, *(Endpoint(conn_id="other", url=dsn) for dsn in others)]
    return purge_log(rig.config.log_url, ends, keep_transactions=keep)


def purged_seqno(rig: Rig) -> int:
    return open_reader(rig.config.log_url).state().purged_seqno


def epochs(rig: Rig) -> int:
    return int(rig.rows("SELECT count(*) FROM parallel_apply.epoch")[0][0])


def test_a_pipeline_goes_on_with_its_purged_log(rig: Rig) -> None:
    done = purge(rig)
    assert (done.needed_seqno, done.purged_seqno, done.segments, done.epochs) == (4, 4, 5, 4)
    assert epochs(rig) == 1
    assert purge(rig) == replace(done, segments=0, file_bytes=0, epochs=0)
    rig.write("UPDATE t SET v = 'b'", "TRUNCATE t", "INSERT INTO t VALUES (1, 'c')")
    rig.run()
    assert rig.comparison().equal
    rig.having(channels=3).run()
    rig.write("UPDATE t SET v = 'd'")
    rig.having(channels=3).run()
    assert rig.comparison().equal
    told = CliRunner().invoke(router, ["explain", "--log-url", rig.config.log_url, "--json"])
    assert json.loads(told.output)["epochs"][0]["first_seqno"] == 5
    assert read_status(rig.target, "p", rig.config.log_url).low_watermark == 8


@gated
def test_a_cleared_run_whose_transactions_were_purged_has_nothing_to_do(rig: Rig) -> None:
    purge(rig)
    rig.write("UPDATE t SET v = 'b'")
    closed = rig.run("early 4")
    assert closed.rows == 0
    assert not rig.comparison().equal
    rig.run()
    assert rig.comparison().equal


@gated
def test_the_last_transactions_are_kept_where_that_is_asked_for(rig: Rig) -> None:
    assert purge(rig, keep=2).purged_seqno == 2
    assert purge(rig, keep=100).purged_seqno == 2
    assert purge(rig, keep=1).purged_seqno == 3


@gated
def test_what_one_channel_has_not_applied_stays(rig: Rig) -> None:
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = 1 WHERE channel = 1")
    assert purge(rig).purged_seqno == 1
    assert epochs(rig) == 4


@gated
def test_the_slowest_of_several_targets_decides_and_each_must_be_asked(rig: Rig, target_server: PostgresServer) -> None:
    dsn = target_server.create_database(f"slow_{rig.rows('SELECT current_database()')[0][0]}")
    slow = replace(rig, target_dsn=dsn)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    slow.prepare()
    with pytest.raises(ConfigurationError, match=r"was not named.*--other-target"):
        purge(rig)
    assert purge(rig, dsn).purged_seqno == -1
    slow.run()
    assert slow.comparison().equal
    with pytest.raises(Unavailable):
        purge(rig, make_conninfo(dsn, port="1"))
    assert purged_seqno(rig) == -1
    assert purge(rig, dsn).purged_seqno == 4
    execute(dsn, "DELETE FROM parallel_apply.pipeline")
    with pytest.raises(ConfigurationError, match=r"does not know this log any more.*rm (/\S+)") as refused:
        purge(rig, dsn)
    Path(str(refused.value).rpartition("rm ")[2]).unlink()
    assert purge(rig).purged_seqno == 4


@gated
def test_a_pipeline_whose_ledger_is_elsewhere_is_asked_at_its_target_and_keeps_its_plan(
    rig: Rig, target_server: PostgresServer, ledger_dsn: str
) -> None:
    dsn = target_server.create_database(f"apart_{rig.rows('SELECT current_database()')[0][0]}")
    apart = replace(rig, target_dsn=dsn, ledger_dsn=ledger_dsn)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    apart.prepare()
    assert purge(rig, dsn).purged_seqno == -1
    apart.run()
    done = purge(rig, dsn)
    assert (done.purged_seqno, done.epochs) == (4, 4)
    assert [kept.partition(" at ")[0] for kept in done.plans_kept] == ["p"]
    assert purge_log(rig.config.log_url, [apart.target, rig.target]).plans_kept == ()
    rig.write("UPDATE t SET v = 'b'")
    for one in (rig, apart):
        one.run()
        assert one.comparison().equal


@gated
def test_a_log_of_an_earlier_release_is_not_purged_before_its_pipeline_has_registered(rig: Rig) -> None:
    for path in Path(rig.config.log_url, "readers").iterdir():
        path.unlink()
    with pytest.raises(ConfigurationError, match="no pipeline is registered"):
        purge(rig)
    rig.run()
    assert purge(rig).purged_seqno == 4


@gated
def test_who_stands_below_what_is_kept_is_refused_when_it_opens(rig: Rig, target_server: PostgresServer) -> None:
    dsn = target_server.create_database(f"late_{rig.rows('SELECT current_database()')[0][0]}")
    late = replace(rig, target_dsn=dsn)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    late.capture("late")
    for entry in read_readers(rig.config.log_url):
        if entry.database.startswith("late"):
            forget_reader(rig.config.log_url, entry)
    purge(rig)
    with pytest.raises(LogError, match=r"seqnos 0 to 4 were purged.*drop it"):
        run.open_run(late.config, late.source, late.target, owner="late", run_id="late")
    assert late.rows("SELECT owner FROM parallel_apply.pipeline") == [(None,)]


@gated
def test_a_purge_in_the_middle_of_a_run_takes_nothing_that_the_run_needs(rig: Rig) -> None:
    rig.write(*(f"UPDATE t SET v = 'b{number}' WHERE id % 7 = {number}" for number in range(7)))
    rig.capture("r")
    plan(rig.config, rig.target)
    opened = run.open_run(rig.config, rig.source, rig.target, owner="r", run_id="r")
    assert purge(rig).purged_seqno == 4
    reports = rig.apply(opened)
    run.close_run(opened, rig.config, rig.target, reports)
    assert rig.comparison().equal


@gated
def test_positions_are_on_disk_before_anything_goes(target_server: PostgresServer, rig: Rig, tmp_path: Path) -> None:
    """Positions that were committed without waiting: after a kill -9 at once they are as they were told."""
    with CopiedServer(
        tmp_path / "data", settings={"synchronous_commit": "off", "wal_writer_delay": "10s", "fsync": "off"}
    ) as server:
        moved = replace(rig, target_dsn=server.dsn())
        execute(server.dsn(), "CREATE TABLE t (id int PRIMARY KEY, v text)")
        moved.prepare()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("UPDATE parallel_apply.position SET seqno = 3")
            before = _flushed(connection)
            target = open_target(moved.target, "p")
            assert {position.seqno for position in target.positions(durable=True)} == {3}
            assert _flushed(connection) > before
            connection.execute("UPDATE parallel_apply.pipeline SET clean_stop_seqno = 99")
        target.close()
        server.kill()
        server.start()
        assert moved.rows("SELECT DISTINCT seqno FROM parallel_apply.position") == [(3,)]


def _flushed(connection: psycopg.Connection) -> int:
    found = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchone()
    assert found is not None
    return int(found[0])


@gated
def test_the_command_says_what_it_purged(rig: Rig) -> None:
    arguments = ["purge", "--log-url", rig.config.log_url, "--keep", "1"]
    environment = {"PARALLEL_APPLY_TARGET": rig.target_dsn}
    assert CliRunner().invoke(app, [*arguments, "--keep-hours", "1"], env=environment).exit_code == 0
    assert purged_seqno(rig) == -1
    told = CliRunner().invoke(app, arguments, env=environment)
    assert told.exit_code == 0, told.output
    assert "purged 4 segments" in told.output
    again = CliRunner().invoke(app, [*arguments, "--json"], env=environment)
    assert json.loads(again.output)["purged_seqno"] == 3

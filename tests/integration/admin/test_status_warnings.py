"""`status` tells of trouble before it is one: slot, log, disk, torn transactions."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus, read_status
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from tests.crash.scene import wait_until
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="watched", log_url=str(tmp_path / "log"), channels=2)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.prepare()
    made.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 20) i")
    made.run()
    return made


def look(rig: Rig, *, much_retained_bytes: int = 2**40) -> PipelineStatus:
    return read_status(rig.target, "watched", rig.config.log_url, rig.source, much_retained_bytes=much_retained_bytes)


def only(status: PipelineStatus) -> Finding:
    (warning,) = status.warnings
    return warning


def test_a_pipeline_that_is_well_has_no_warnings(rig: Rig) -> None:
    status = look(rig)
    assert (status.warnings, status.oldest_time) == ((), None)
    assert status.log_bytes


@gated
def test_a_slot_that_holds_back_much_is_told_until_a_run_reads_it(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE pad AS SELECT repeat(i::text, 300) FROM generate_series(1, 20000) i")
    warning = only(look(rig, much_retained_bytes=8 * 2**20))
    assert "is inactive and holds back" in warning.what
    assert warning.severity is Severity.WARNING
    execute(rig.source_dsn, "DROP TABLE pad")
    rig.run()
    execute(rig.source_dsn, "CHECKPOINT")
    rig.run()
    assert look(rig, much_retained_bytes=8 * 2**20).warnings == ()


@gated
def test_a_slot_that_is_gone_is_an_error(rig: Rig) -> None:
    execute(rig.source_dsn, "SELECT pg_drop_replication_slot('parallel_apply_watched')")
    assert (only(look(rig)).severity, only(look(rig)).side) == (Severity.ERROR, Side.SOURCE)


@gated
def test_a_source_that_is_away_is_told_beside_the_rest(rig: Rig) -> None:
    status = look(replace(rig, source_dsn="host=127.0.0.1 port=1 dbname=x"))
    assert "cannot be reached" in only(status).what
    assert len(status.channels) == 2


@gated
@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.long), 18])
def test_a_slot_near_its_bound_is_warned_of_and_a_lost_one_is_an_error(
    tmp_path: Path, target_dsn: str, version: int
) -> None:
    settings = {"max_wal_size": "32MB", "min_wal_size": "32MB", "fsync": "off"}
    server = CopiedServer(tmp_path / "data", version=version, settings=settings)
    server.set_in_file("max_slot_wal_keep_size", "64MB")
    with server:
        rig = Rig(
            config=PipelineConfig(pipeline="watched", log_url=str(tmp_path / "log"), channels=2),
            source_dsn=server.dsn(),
            target_dsn=target_dsn,
        )
        rig.both("CREATE TABLE t (id int PRIMARY KEY)")
        rig.prepare()
        warning = only(look(rig))
        assert "about to be given up" in warning.what
        for command in warning.fix:
            execute(server.dsn(), command)
        wait_until(lambda: look(rig).warnings == (), what="the server to read its configuration again")
        execute(server.dsn(), "ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
        for _ in range(6):
            execute(server.dsn(), "SELECT pg_switch_wal()", "CREATE TABLE p (a int)", "DROP TABLE p", "CHECKPOINT")
        assert "lost WAL" in only(look(rig)).what
        assert only(look(rig)).severity is Severity.ERROR


@gated
def test_torn_transactions_are_listed_when_no_run_is_alive(rig: Rig) -> None:
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = -1 WHERE channel = 1")
    status = look(rig)
    assert "transactions 0 to 0 are torn" in only(status).what
    assert status.oldest_time is not None
    execute(
        rig.target_dsn,
        "UPDATE parallel_apply.pipeline SET owner = 'somebody', lease_until = now() + interval '1 minute'",
    )
    assert look(rig).warnings == ()


@gated
def test_a_disk_that_is_nearly_full_is_told_with_the_logs_size(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100 * 2**30, 95 * 2**30, 5 * 2**30))
    warning = only(look(rig))
    assert "5,120 MB of 102,400 MB are free" in warning.what
    assert "purge" in warning.note


@gated
def test_the_command_shows_warnings_in_both_forms(rig: Rig) -> None:
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("UPDATE parallel_apply.position SET seqno = -1 WHERE channel = 1")
    arguments = ["status", "--pipeline", "watched", "--log-url", rig.config.log_url]
    environment = {"PARALLEL_APPLY_TARGET": rig.target_dsn, "PARALLEL_APPLY_SOURCE": rig.source_dsn, "COLUMNS": "200"}
    shown = CliRunner().invoke(app, arguments, env=environment)
    assert "warning: transactions 0 to 0 are torn" in shown.output
    assert "was committed 0:00" in shown.output
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"], env=environment).output)
    assert told["warnings"][0]["side"] == "target"


@gated
def test_channels_behind_a_failure_are_told_to_wait_for_it_and_for_no_serialization_point(
    source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    config = PipelineConfig(
        pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=4, lanes=1, epoch_max_changes=20
    )
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    rig.both("CREATE TABLE t (id int PRIMARY KEY)")
    execute(target_dsn, "ALTER TABLE t ADD CHECK (id <> 33)")
    rig.prepare()
    for first in range(0, 100, 20):
        rig.write(f"INSERT INTO t SELECT generate_series({first}, {first + 19})")
    with pytest.raises(ParallelApplyError):
        rig.run()
    status = read_status(rig.target, "p", config.log_url)
    (failed,) = [channel for channel in status.channels if channel.state is ChannelState.FAILED]
    others = [channel for channel in status.channels if channel is not failed]
    assert {channel.state for channel in others} == {ChannelState.BEHIND_FAILURE}
    told = f"a person: the failure of channel {failed.channel} at seqno 0"
    assert {channel.waits_for for channel in others} == {told}

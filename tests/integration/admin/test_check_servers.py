"""Servers whose settings do not let a pipeline live: each setting is named, and its command is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.model.finding import Severity
from tests.crash.scene import wait_until
from tests.support.clusters import CopiedServer
from tests.support.findings import fix, found, look
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.mark.parametrize(("setting", "statement", "says"), [
    ("max_replication_slots", "SELECT pg_create_physical_replication_slot('mine')", "no replication slots left"),
    ("max_wal_senders", "SELECT 1", "no WAL senders left: 0 of 0"),
    ("wal_level", "SELECT 1", "wal_level=replica"),
])  # fmt: skip
def test_a_server_that_has_nothing_left_says_which_setting_to_raise(
    tmp_path: Path, target_dsn: str, setting: str, statement: str, says: str
) -> None:
    tight = {"max_replication_slots": "1", "max_wal_senders": "0", "wal_level": "replica"}[setting]
    server = CopiedServer(tmp_path / "data", settings={"fsync": "off"})
    # In the file, where ALTER SYSTEM has the last word.
    server.set_in_file(setting, tight)
    with server:
        rig = Rig(
            config=PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log"), channels=1),
            source_dsn=server.dsn(),
            target_dsn=target_dsn,
        )
        rig.both("CREATE TABLE t (id int PRIMARY KEY)")
        execute(server.dsn(), statement)
        finding = found(rig, says)
        assert finding.severity is Severity.ERROR
        fix(rig, finding)
        server.stop()
        server.start()
        assert look(rig).findings == ()


@gated
def test_slots_that_time_out_between_runs_are_warned_of(tmp_path: Path, target_dsn: str) -> None:
    server = CopiedServer(tmp_path / "data", settings={"fsync": "off"})
    server.set_in_file("idle_replication_slot_timeout", "1h")
    with server:
        rig = Rig(
            config=PipelineConfig(pipeline="p", start=Start.EMPTY, log_url=str(tmp_path / "log"), channels=1),
            source_dsn=server.dsn(),
            target_dsn=target_dsn,
        )
        rig.both("CREATE TABLE t (id int PRIMARY KEY)")
        finding = found(rig, "gives up slots")
        assert finding.severity is Severity.WARNING
        fix(rig, finding)
        wait_until(lambda: look(rig).findings == (), what="the server to read its configuration again")

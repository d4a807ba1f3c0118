"""Pipelines whose lanes do not see the log's directory: capture has it, and a router serves it to all others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.capture.adoption import adopt_source, release_source
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig, Start, StoreName
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.remote import reader
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig
from tests.support.routers import RouterCommand, served_logs
from tests.support.variants import gated, variants
from tests.support.written_log import make_log

NOWHERE = "/nowhere/on/this/host"
TOKEN = "a-token-of-ours"
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text)",
    "CREATE TABLE g (id int PRIMARY KEY, tenant int NOT NULL, v text)",
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture
def served(logs: Path, tmp_path: Path) -> Iterator[str]:
    with served_logs(logs, token=TOKEN, spill=tmp_path) as url:
        yield url.replace("://", f"://:{TOKEN}@")


def rig_of(served: str, logs: Path, source_dsn: str, target_dsn: str, **changes: object) -> Rig:
    """That of capture: its configuration alone has the directory."""
    config = PipelineConfig(
        pipeline="p",
        log_url=f"{served}/shop",
        log_directory=str(logs / "shop"),
        start=Start.EMPTY,
        channels=3,
        lanes=2,
        epoch_max_changes=40,
    )
    made = Rig(config=replace(config, **changes), source_dsn=source_dsn, target_dsn=target_dsn)
    made.both(*TABLES)
    return made


def elsewhere(rig: Rig) -> Rig:
    """The same pipeline on a host without the directory."""
    return rig.having(log_directory=NOWHERE)


def write(rig: Rig) -> None:
    """Parallel epochs, unique values that change hands between channels, a truncate, a transaction of many epochs."""
    rig.write(
        "INSERT INTO t SELECT n, n, 'a' FROM generate_series(1, 150) n",
        "INSERT INTO g SELECT n, n % 7, 'a' FROM generate_series(1, 90) n",
        "UPDATE t SET v = 'b' WHERE id % 3 = 0",
    )
    rig.transaction("UPDATE t SET u = NULL WHERE id <= 20", "UPDATE t SET u = 21 - id WHERE id <= 20")
    rig.write(
        "TRUNCATE g", "INSERT INTO g SELECT n, n % 5, 'c' FROM generate_series(1, 60) n", "DELETE FROM t WHERE id > 120"
    )


def run(rig: Rig, run_id: str) -> None:
    there = elsewhere(rig)
    rig.capture(run_id)
    plan(there.config, there.target)
    opened = there.open(run_id)
    there.close(opened, there.apply(opened))


WAYS = {
    "by key": {},
    "by shard": {"partitioner": "shard", "shard_by": (("*", "id % 7"),)},
    "in groups": {"consistency": Consistency.EPOCH},
    "rows in memory": {"store": StoreName.MEMORY},
}


@pytest.mark.parametrize("way", variants(WAYS, seldom=["by shard"], gated=["by key", "in groups"]))
def test_only_capture_sees_the_directory_and_the_target_is_equal(
    way: str, served: str, logs: Path, source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "FIRST_CAPTURE_CHANGES", 100)
    rig = rig_of(served, logs, source_dsn, target_dsn, **WAYS[way])
    rig.prepare()
    write(rig)
    run(rig, "first")
    assert rig.comparison().equal
    rig.write("UPDATE t SET v = 'again'", "DELETE FROM g WHERE id > 30")
    run(rig, "second")
    assert rig.comparison().equal
    there = elsewhere(rig)
    status = read_status(there.target, "p", there.config.log_url)
    log = open_reader(str(logs / "shop")).state()
    assert (status.low_watermark, status.captured_seqno) == (log.last_seqno, log.last_seqno)
    assert status.log_bytes == sum(segment.file_bytes for segment in log.segments)


@gated
def test_check_names_a_router_that_is_away_or_serves_another_log_and_no_error_tells_the_token(
    served: str,
    logs: Path,
    tmp_path: Path,
    source_dsn: str,
    target_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_of(served, logs, source_dsn, target_dsn)
    told: list[str] = []

    def found(config: PipelineConfig) -> str:
        findings = check_pipeline(config, rig.source, rig.target).findings
        told.extend(map(str, findings))
        return " ".join(finding.what for finding in errors(findings))

    assert not found(rig.config)
    assert any("serves no such log yet" in text for text in told)
    rig.prepare()
    assert not found(rig.config)
    assert not found(replace(rig.config, log_directory=""))
    monkeypatch.setattr(reader, "FIRST_PATIENCE", timedelta(0))
    away = replace(rig.config, log_url="grpc://:secret@127.0.0.1:1/shop")
    assert "cannot be reached" in found(away)
    make_log(str(tmp_path / "mistaken"))
    assert "holds log log" in found(replace(rig.config, log_directory=str(tmp_path / "mistaken")))
    for text in told:
        assert TOKEN not in text
        assert "secret" not in text
    assert TOKEN not in repr(rig.config)


@gated
def test_what_needs_the_directory_says_so(served: str, logs: Path, source_dsn: str, target_dsn: str) -> None:
    rig = rig_of(served, logs, source_dsn, target_dsn)
    without = rig.having(log_directory="")
    with pytest.raises(ConfigurationError, match=r"whoever captures needs.*log_directory"):
        without.capture("run")
    rig.prepare()
    with pytest.raises(ConfigurationError, match="needs the log's directory"):
        purge_log(rig.config.log_url, [rig.target])
    with pytest.raises(ConfigurationError, match="needs the log's directory"):
        drop_pipeline("p", rig.source, rig.target, log_url=rig.config.log_url)
    with pytest.raises(ConfigurationError, match="needs the log's directory"):
        recopy_tables(without.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    for adopting in (adopt_source, release_source):
        with pytest.raises(ConfigurationError, match="needs the log's directory"):
            adopting(rig.source, without.config)
    with pytest.raises(ConfigurationError, match="channel_log"):
        rig.having(store=StoreName.CHANNEL_LOG)
    with pytest.raises(ConfigurationError, match="log_directory"):
        rig.having(log_url=str(logs / "shop"))
    # A capture that did not come to the run's end.
    rig.write("INSERT INTO t VALUES (1, 1, 'a')")
    preparing.capture(
        rig.config, rig.source, rig.target, run_id="cut", until="", cancelled=lambda: True, report=lambda step: None
    )
    with pytest.raises(LogError, match=r"not all of this run.*Clear the task capture"):
        elsewhere(rig).open("cut")
    run(rig, "cut")
    assert rig.comparison().equal


@gated
def test_a_router_that_is_killed_while_lanes_apply_costs_time_and_nothing_else(
    logs: Path, source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = RouterCommand(logs)
    try:
        rig = rig_of(router.url, logs, source_dsn, target_dsn)
        rig.prepare()
        # Rows of 15 kB, so that each channel's are several batches on the wire.
        for part in range(8):
            wide = "SELECT n, n, repeat(n::text, 5000)"
            rig.write(f"INSERT INTO t {wide} FROM generate_series({part * 60 + 101}, {part * 60 + 160}) n")
            rig.write("UPDATE t SET u = -id WHERE id % 5 = 0")
        rig.capture("run")
        there = elsewhere(rig)
        plan(there.config, there.target)
        opened = there.open("run")
        strikes = [1, 4]
        batches = 0
        original, lock = StreamClient.stream, threading.Lock()

        def stream(self, ticket):
            nonlocal batches
            for batch in original(self, ticket):
                with lock:
                    batches += 1
                    if strikes and batches >= strikes[0]:
                        strikes.pop(0)
                        router.end(signal.SIGKILL)
                        router.start()
                yield batch

        monkeypatch.setattr(StreamClient, "stream", stream)
        there.close(opened, there.apply(opened))
        assert not strikes
        assert rig.comparison().equal
    finally:
        router.process.kill()
        router.process.communicate()

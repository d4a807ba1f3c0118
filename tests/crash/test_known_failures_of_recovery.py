"""Bugs of recovery that other replicators shipped, each by what happened; kills are kill -9."""

from __future__ import annotations

import signal
from typing import Literal

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, Start
from tests.crash.scene import Scene, spark_processes
from tests.support.step_process import Fault, peak_bytes
from tests.support.variants import gated

WRITER = "airflow_parallel_apply.pipeline.log.writer:DirectoryLogWriter"
SLOT = "airflow_parallel_apply.pipeline.source.postgres.slot.slot:Slot"


@pytest.fixture
def wide(scene: Scene) -> Scene:
    scene.rig = scene.rig.having(channels=8)
    return scene


@gated
def test_a_partly_received_transaction_is_received_anew_and_nothing_of_it_is_doubled(wide: Scene) -> None:
    """The transaction is three times as large as what a step holds in memory."""
    wide.rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE entry (at integer, v text)")
    wide.rig.prepare()
    wide.rig.write("INSERT INTO t VALUES (0, 'before')")
    wide.rig.transaction(
        "INSERT INTO t SELECT i, repeat('x', 8000) FROM generate_series(1, 1500) i",
        "INSERT INTO entry SELECT i % 7, repeat('y', 8000) FROM generate_series(1, 1500) i",
    )
    capture = wide.start_capture("killed", fault=Fault(at=f"{WRITER}.append", when="after", call=2))
    assert capture.wait() == -signal.SIGKILL, capture.tail()
    wide.rig.write("INSERT INTO t VALUES (-1, 'behind')")
    wide.rig.run()
    wide.require_equal()
    assert wide.rig.rows("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM entry)") == [(1502, 1500)]


@pytest.mark.parametrize(
    ("at", "when"),
    [
        pytest.param(f"{WRITER}.commit", "before", id="before the log", marks=pytest.mark.long),
        pytest.param(f"{WRITER}.commit", "after", id="behind the log"),
        pytest.param(f"{SLOT}.advance", "before", id="before the slot", marks=pytest.mark.long),
        pytest.param(f"{SLOT}.advance", "after", id="behind the slot"),
    ],
)
def test_changes_between_the_copys_snapshot_and_the_first_captured_step_survive_a_kill(
    wide: Scene, at: str, when: Literal["before", "after"]
) -> None:
    """The slot may let go of nothing that is not in the log, whatever was told to have been copied."""
    wide.rig = wide.rig.having(start=Start.COPY)
    wide.rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE entry (at integer)")
    wide.rig.write("INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 500) i", "INSERT INTO entry VALUES (1)")
    wide.rig.prepare()
    wide.rig.write(
        "UPDATE t SET v = 'changed' WHERE id % 3 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        "INSERT INTO entry SELECT generate_series(1, 100)",
    )
    capture = wide.start_capture("killed", fault=Fault(at=at, when=when))
    assert capture.wait() == -signal.SIGKILL, capture.tail()
    wide.rig.write("INSERT INTO entry VALUES (2)")
    wide.rig.run()
    wide.require_equal()


@gated
def test_a_transaction_that_was_open_during_a_crash_is_not_taken_for_one_that_is_applied(wide: Scene) -> None:
    """Its first changes lie before, in the source's WAL, what is committed, captured and applied meanwhile."""
    wide.rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE entry (at integer)")
    wide.rig.prepare()
    with psycopg.connect(wide.rig.source_dsn) as long:
        long.execute("INSERT INTO t SELECT i, 'long' FROM generate_series(1, 200) i")
        long.execute("INSERT INTO entry SELECT generate_series(1, 50)")
        wide.rig.write("INSERT INTO t SELECT i, 'short' FROM generate_series(1000, 1200) i")
        opened = wide.open("killed")
        target = "airflow_parallel_apply.pipeline.target.postgres.target:PostgresTarget"
        lane = wide.start_lane(opened, fault=Fault(at=f"{target}.commit", when="after", call=2))
        assert lane.wait() == -signal.SIGKILL, lane.tail()
        long.execute("UPDATE t SET v = 'longer' WHERE id % 2 = 0 AND id <= 200")
    assert wide.rerun("killed").stop_seqno == 0
    assert wide.rerun("next").stop_seqno == 1
    wide.require_equal()
    assert wide.rig.rows("SELECT v, count(*) FROM t GROUP BY v ORDER BY v") == [
        ("long", 100),
        ("longer", 100),
        ("short", 201),
    ]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("channels", "consistency", "protocol"),
    [
        (2, Consistency.CHANNEL, EpochProtocol.AUTO),
        (8, Consistency.EPOCH, EpochProtocol.LEADER_MERGE),
        (8, Consistency.EPOCH, EpochProtocol.TWO_PHASE),
    ],
)
def test_a_huge_transaction_takes_no_more_memory_than_a_large_one(
    spark_scene: Scene, channels: int, consistency: Consistency, protocol: EpochProtocol
) -> None:
    """Capture, a lane and Spark's Python workers: 240 MB of values, which fill every buffer there is, then 640 MB."""
    scene = spark_scene
    scene.rig = scene.rig.having(channels=channels, consistency=consistency, epoch_protocol=protocol)
    scene.rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    scene.rig.prepare()
    peaks = [_peaks(scene, rows) for rows in (150_000, 400_000)]
    scene.require_equal()
    for name, small in peaks[0].items():
        assert peaks[1][name] < small + 128 * 2**20, peaks


def _peaks(scene: Scene, rows: int) -> dict[str, int]:
    """Bytes that processes of each kind held at most, while they bring a transaction of so many rows."""
    assert scene.spark_directory is not None
    scene.rig.write(f"INSERT INTO t SELECT {rows} + i, repeat('v', 1600) FROM generate_series(1, {rows}) i")
    capture = scene.start_capture(f"{rows} rows")
    captured = capture.report(timeout=240)
    assert captured is not None, capture.tail()
    opened = scene.open(f"{rows} rows")
    lane = scene.start_lane(opened)
    applied = lane.report(timeout=240)
    assert applied is not None, lane.tail()
    scene.close(opened)
    workers = [peak_bytes(pid) for pid in spark_processes(scene.spark_directory)[1]]
    return {"capture": captured["peak_bytes"], "lane": applied["peak_bytes"], "worker": max(workers)}

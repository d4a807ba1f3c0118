"""A first run that copies into the log, killed at each step while the source is written: every row is there once."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Start
from tests.crash.scene import Scene
from tests.crash.test_copy_kills import being_written
from tests.integration.target_files.feeds import feed, replayed
from tests.support.rig import execute
from tests.support.step_process import Fault
from tests.support.variants import gated, variants

CAPTURE = "airflow_parallel_apply.pipeline.capture"
ROWS = 20_000
COMMIT = "airflow_parallel_apply.pipeline.log.writer:DirectoryLogWriter.commit"

KILLS = {
    "the stream is there": Fault(at=f"{CAPTURE}.first_run:begin_log", when="before"),
    "the log has begun": Fault(at=f"{CAPTURE}.first_run:begin_log", when="after"),
    "among the rows": Fault(at=f"{CAPTURE}.copying:_Progress.add", when="after", call=2),
    "all rows are written": Fault(at=COMMIT, when="before", call=2),
    "the log is whole": Fault(at=COMMIT, when="after", call=2),
    "the stream has begun": Fault(at="airflow_parallel_apply.pipeline.run.preparing:register_reader", when="before"),
}


@pytest.fixture
def filled(scene: Scene, ledger_dsn: str, tmp_path: Path) -> Scene:
    scene.rig = replace(scene.rig, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    scene.rig = scene.rig.having(start=Start.COPY, channels=2, epoch_max_changes=5_000)
    execute(
        scene.rig.source_dsn,
        "CREATE TABLE large (id integer PRIMARY KEY, v text)",
        f"INSERT INTO large SELECT i, repeat('x', 60) FROM generate_series(1, {ROWS}) i",
        "CREATE TABLE plain (v text)",
        "INSERT INTO plain SELECT 'a' FROM generate_series(1, 100)",
    )
    return scene


@gated
@pytest.mark.parametrize("place", variants(KILLS, seldom={*KILLS} - {"the log is whole"}))
def test_a_first_run_that_dies_leaves_every_row_once(filled: Scene, tmp_path: Path, place: str) -> None:
    with being_written(filled, above=ROWS):
        capture = filled.start_capture("killed", fault=KILLS[place])
        assert capture.wait() == -signal.SIGKILL, capture.tail()
        filled.rig.run()
    filled.rig.run()
    filled.require_equal()
    found = replayed(tmp_path / "lake", "public.large")
    wanted = dict(filled.rig.rows("SELECT id, v FROM large", side="source"))
    assert {key: row["v"] for key, row in found.items()} == wanted
    assert [row["_operation"] for row in feed(tmp_path / "lake", "public.plain")] == ["read"] * 100
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert filled.rig.rows(slots, side="source") == [(1,)]

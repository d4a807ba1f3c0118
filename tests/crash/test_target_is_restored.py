"""The target goes back to an earlier state of its data directory while a run is under way; its queue is elsewhere.

`CRASH_SEED` repeats one choice of moments. Some states are from before the run was opened: then it is opened anew.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, QueueEndpoint, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.run import ClosedRun, OpenedRun
from airflow_parallel_apply.pipeline.target.open import open_target
from tests.crash.scene import wait_until
from tests.support.clusters import CopiedServer
from tests.support.queue_service import ServedQueue
from tests.support.rig import Rig
from tests.support.variants import GATED

SEEDS: Final = [int(os.environ["CRASH_SEED"])] if os.environ.get("CRASH_SEED") else list(range(20))
MIDDLE: Final = 1
"""The seed of a loss from before the run was opened."""


class Restorable:
    """A server that can be put back to where it was."""

    def __init__(self, directory: Path) -> None:
        settings = {"fsync": "off", "shared_buffers": "64MB", "autovacuum": "off"}
        self._data, self._kept = directory / "data", directory / "kept"
        self.server = CopiedServer(self._data, settings=settings)

    def keep(self) -> None:
        self.server.kill()
        self._copy(self._data, self._kept)
        self.server.start()

    def restore(self) -> None:
        self.server.kill()
        self._copy(self._kept, self._data)
        self.server.start()

    def _copy(self, source: Path, target: Path) -> None:
        # With its owner, which is another user's where the tests run as root.
        subprocess.run(["rm", "-rf", target], check=True)
        subprocess.run(["cp", "-a", source, target], check=True)


@pytest.fixture
def target() -> Iterator[Restorable]:
    with TemporaryDirectory(prefix="parallel-apply-target-") as directory:
        made = Restorable(Path(directory))
        with made.server:
            yield made


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueEndpoint]:
    served = ServedQueue(tmp_path / "queue")
    yield QueueEndpoint(conn_id="queue", dsn=served.url)
    served.stop()


@pytest.fixture
def rig(source_dsn: str, target: Restorable, queue: QueueEndpoint, tmp_path: Path) -> Rig:
    """Values that go from channel to channel, serialization points, and rows without a key, where once is not twice."""
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=3,
        lanes=2,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=40,
        unit_max_bytes=600,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target.server.dsn(), queue=queue)
    made.both(
        "CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)",
        "CREATE TABLE entry (at integer, n integer)",
    )
    made.prepare()
    for turn in range(3):
        ids = range(turn * 1000, turn * 1000 + 300, 30)
        made.write(
            *(f"INSERT INTO t SELECT i, i, 'a' FROM generate_series({n}, {n + 29}) i" for n in ids),
            *(f"INSERT INTO entry SELECT {turn}, i FROM generate_series({n}, {n + 20}) i" for n in range(0, 200, 20)),
        )
        for key in range(ids[0], ids[0] + 8):
            made.transaction(
                f"UPDATE t SET u = -u - 1 WHERE id = {key}", f"INSERT INTO t VALUES ({key + 600}, {key}, 'b')"
            )
        if turn == 1:
            made.transaction("TRUNCATE t", "INSERT INTO t SELECT i, i, 'c' FROM generate_series(1, 300) i")
    return made


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=GATED if seed == MIDDLE else pytest.mark.long) for seed in SEEDS]
)
def test_a_run_outlives_what_its_target_loses(rig: Rig, target: Restorable, seed: int) -> None:
    chance = random.Random(seed)
    rig.capture("run")
    before_open = seed % 5 == 1
    if before_open:
        target.keep()
    opened = rig.open("run")
    assert opened.until_seqno is not None
    first, second = sorted(chance.sample(range(opened.until_seqno), 2))
    with ThreadPoolExecutor(1) as pool:
        lanes = pool.submit(rig.apply, opened)
        if not before_open:
            wait_until(lambda: lanes.done() or reached(rig) >= first, what=f"seqno {first}")
            target.keep()
        wait_until(lambda: lanes.done() or reached(rig) >= second, what=f"seqno {second}")
        target.restore()
        error = lanes.exception(timeout=300)
    if before_open:
        # Unless its lanes were through before.
        assert error is None or "the target has lost commits" in str(error)
        closed = rerun(rig)
    else:
        assert error is None
        closed = closed_or_rerun(rig, opened)
    assert closed.stop_seqno == opened.until_seqno
    comparison = rig.comparison()
    assert comparison.equal, comparison


def closed_or_rerun(rig: Rig, opened: OpenedRun) -> ClosedRun:
    """Lanes that were through before the loss leave it to `close` to notice."""
    try:
        return rig.close(opened)
    except TargetError as error:
        if "the target has lost commits" not in str(error):
            raise
    return rerun(rig)


def rerun(rig: Rig) -> ClosedRun:
    """As the hint says: open is cleared, with everything downstream."""
    opened: OpenedRun = rig.open("run")
    return rig.close(opened, rig.apply(opened))


def reached(rig: Rig) -> int:
    """The seqno that every channel has committed."""
    session = open_target(rig.target, "p")
    try:
        return low_watermark(session.positions())
    except (ParallelApplyError, psycopg.Error):
        return -1
    finally:
        session.close()

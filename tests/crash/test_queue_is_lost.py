"""The service that steers a run is killed with -9 in its middle, and comes back with what it had, or with nothing.

What was applied is known to the target alone, so nothing is lost, nothing is done twice, and the run ends green.
`CRASH_SEED` repeats the choices, `QUEUE_LOSSES` says how many there are.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import QueueEndpoint
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.model.position import low_watermark
from tests.crash.scene import Scene, wait_until
from tests.support.queue_service import ServiceProcess
from tests.support.step_process import Fault
from tests.support.variants import GATED, gated

SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
LOSSES = int(os.environ.get("QUEUE_LOSSES") or 6)
COMMIT = "airflow_parallel_apply.pipeline.target.postgres.target:PostgresTarget.commit"
COORDINATOR = "airflow_parallel_apply.pipeline.coordinate.coordinator:Coordinator"

PLACES = {
    "between commit and finish": Fault(at=COMMIT, when="after", call=2),
    "at a barrier": Fault(at=f"{COORDINATOR}.arrive", when="after", call=2),
    "between positions and acknowledgement": Fault(at=f"{COORDINATOR}.acknowledge", when="before", call=2),
}
"""The places where a lane dies."""


class FragileService:
    """One address; behind it one process after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = ServiceProcess(directory)
        self.url = self._process.url
        self.address = str(self._process.ready["address"])

    def kill(self, *, forget: bool) -> None:
        self._process.end(signal.SIGKILL)
        if forget:
            shutil.rmtree(self._directory)

    def start(self) -> None:
        self._process = ServiceProcess(self._directory, listen=self.address)

    def close(self) -> None:
        self._process.process.kill()
        self._process.process.communicate()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FragileService]:
    one = FragileService(tmp_path / "queue")
    yield one
    one.close()


@pytest.fixture
def written(scene: Scene, service: FragileService) -> Scene:
    """Many units for each of three channels, serialization points, values that go from channel to channel; and rows
    without a key, of which one applied twice would be seen.
    """
    scene.rig = replace(
        scene.rig.having(epoch_max_changes=40, unit_max_bytes=600),
        queue=QueueEndpoint(conn_id="queue", dsn=service.url),
    )
    scene.step_changes = 500
    scene.rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)",
        "CREATE TABLE entry (at integer, n integer)",
    )
    scene.rig.prepare()
    for turn in range(4):
        ids = range(turn * 1000, turn * 1000 + 500, 50)
        scene.rig.write(
            *(f"INSERT INTO t SELECT i, i, 'a' FROM generate_series({n}, {n + 49}) i" for n in ids),
            *(f"INSERT INTO entry SELECT {turn}, i FROM generate_series({n}, {n + 20}) i" for n in range(0, 200, 20)),
        )
        for key in range(ids[0], ids[0] + 12):
            scene.rig.transaction(
                f"UPDATE t SET u = -u - 1 WHERE id = {key}", f"INSERT INTO t VALUES ({key + 600}, {key}, 'b')"
            )
        if turn == 2:
            scene.rig.transaction("TRUNCATE t", "INSERT INTO t SELECT i, i, 'c' FROM generate_series(1, 300) i")
    return scene


@pytest.mark.parametrize(
    "forget",
    [pytest.param(one, marks=GATED) for one in (False, True, None)],
    ids=["comes back", "is lost", "either, at random"],
)
def test_a_run_outlives_its_queue(written: Scene, service: FragileService, forget: bool | None) -> None:
    chance = random.Random(SEED)
    print(f"CRASH_SEED={SEED}")
    written.rig.capture("run")
    opened = written.open("run")
    assert opened.until_seqno is not None
    with ThreadPoolExecutor(1) as pool:
        lanes = pool.submit(written.rig.apply, opened)
        for loss in range(1, LOSSES + 1):
            goal = loss * opened.until_seqno // (LOSSES + 1)
            wait_until(lambda: lanes.done() or reached(written) >= goal, what=f"seqno {goal}")  # noqa: B023
            service.kill(forget=chance.random() < 0.5 if forget is None else forget)
            service.start()
        reports = lanes.result(timeout=240)
    closed = written.rig.close(opened, reports)
    assert (closed.stop_seqno, closed.stopped_early) == (opened.until_seqno, False)
    written.require_equal()
    assert written.staged() == []


@pytest.mark.parametrize(
    "back", [pytest.param(True, marks=GATED), pytest.param(False, marks=pytest.mark.long)], ids=["empty", "away"]
)
def test_a_queue_that_is_lost_before_close_leaves_the_judgement_to_the_positions(
    written: Scene, service: FragileService, back: bool
) -> None:
    written.rig.capture("run")
    opened = written.open("run")
    reports = written.rig.apply(opened)
    service.kill(forget=True)
    if back:
        service.start()
    assert written.rig.close(opened, reports).stop_seqno == opened.until_seqno
    written.require_equal()


@gated
def test_a_queue_that_is_lost_in_the_middle_and_not_served_by_a_lane_again_is_no_clean_shutdown(
    written: Scene, service: FragileService
) -> None:
    written.rig.capture("run")
    opened = written.open("run")
    service.kill(forget=True)
    service.start()
    with pytest.raises(OwnershipLost, match="the queue was lost"):
        written.close(opened)
    written.rerun("run")
    written.require_equal()


@pytest.mark.long
def test_a_lane_that_stood_still_while_its_queue_was_lost_changes_nothing(
    written: Scene, service: FragileService
) -> None:
    """It sleeps between its unit's commit and its finish; another lane fills the new queue, and applies the rest."""
    written.rig.capture("run")
    opened = written.open("run")
    zombie = written.start_lane(opened, fault=Fault(at=COMMIT, when="after", call=3, signal=signal.SIGSTOP))
    zombie.wait_stopped()
    service.kill(forget=True)
    service.start()
    written.rig.lane(opened, 1)
    closed = written.close(opened)
    zombie.signal(signal.SIGCONT)
    zombie.wait()
    assert closed.stop_seqno == opened.until_seqno
    written.require_equal()
    written.rig.write("INSERT INTO t VALUES (-5, -5, 'later')")
    written.rig.run("next")
    written.require_equal()


@pytest.mark.long
@pytest.mark.parametrize("forget", [False, True], ids=["comes back", "is lost"])
@pytest.mark.parametrize("place", PLACES)
def test_a_lane_and_its_queue_die_together(written: Scene, service: FragileService, place: str, forget: bool) -> None:
    written.rig.capture("run")
    opened = written.open("run")
    lane = written.start_lane(opened, fault=PLACES[place])
    assert lane.wait() == -signal.SIGKILL, lane.tail()
    service.kill(forget=forget)
    service.start()
    written.rig.lane(opened, 1)
    assert written.close(opened).stop_seqno == opened.until_seqno
    written.require_equal()


def reached(scene: Scene) -> int:
    """The seqno that every channel has committed."""
    return low_watermark(scene.positions())

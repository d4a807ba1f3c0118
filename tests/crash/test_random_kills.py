"""Any process killed at any moment, or a lane that sleeps past its lease: after a rerun both sides are equal.

`CRASH_SEED` repeats a sequence of histories, victims and delays (what they meet is the machine's timing);
`CRASH_MOMENTS` says how many moments.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, TablePatterns
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from tests.crash.history import TABLES, AwkwardHistory, EverydayHistory, History
from tests.crash.scene import Scene, spark_processes
from tests.support.awkward_tables import make_tables
from tests.support.steps import StepProcess


class Victim(StrEnum):
    """The process that dies, or sleeps."""

    LANE = "a lane"
    LANES = "all lanes"
    CAPTURE = "the capture process"
    SPARK = "the Spark server"
    WORKER = "a Python worker of Spark"
    TARGET = "the target"
    SLEEPER = "nobody, but a lane sleeps and another goes on"
    ZOMBIE = "a lane, and another sleeps until the rerun is over"


COVERED = frozenset({Victim.LANE, Victim.SPARK, Victim.WORKER, Victim.TARGET, Victim.SLEEPER})
"""After these the run itself becomes green: other lanes, or the same ones, go on."""

SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
MOMENTS = int(os.environ.get("CRASH_MOMENTS") or 4)
AWKWARD_MOMENTS = int(os.environ.get("CRASH_MOMENTS") or len(Victim))

BURST = 60
LONGEST_DELAY_SECONDS = 3.0


class _Clock:
    """A stopwatch that tells where a moment's time goes."""

    def __init__(self) -> None:
        self._laps: list[tuple[str, float]] = []
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps.append((name, now - self._last))
        self._last = now

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._laps)


class Moments:
    """The moments of one seed, one after the other, on one pipeline."""

    def __init__(self, scene: Scene, history: History, say: Callable[[str], None]) -> None:
        self._scene = scene
        self._history = history
        self._say = say
        self._victims = random.Random(SEED)
        self._names: list[Victim] = []

    def play(self, number: int) -> None:
        if number == len(self._names):
            self._names += self._victims.sample(list(Victim), len(Victim))
        victim = self._names[number]
        dice = random.Random(f"{SEED} {number}")
        clock = _Clock()
        self._write(dice)
        clock.lap("write")
        run_id = f"moment {number}"
        sleeping = None
        try:
            with self._history.trickling():
                delay = dice.uniform(0, LONGEST_DELAY_SECONDS)
                told = self._disturbed_capture(run_id, dice) if victim is Victim.CAPTURE else ""
                sleeping, green = self._disturbed_lanes(run_id, victim, delay, dice)
                assert green or victim not in COVERED, f"moment {number}: the run did not cover the loss of {victim}"
                clock.lap("run")
                self._scene.rerun(run_id)
                clock.lap("rerun")
            self._require_equal(number)
            clock.lap("rest")
            if sleeping is not None:
                self._wake(sleeping, number)
        except BaseException:
            for process in self._scene.steps.started():
                self._say(f"--- {process.name}{process.tail()}")
            raise
        clock.lap("wake")
        self._say(f"moment {number}: {victim} after {delay:.2f} s{told}, green at first: {green}; {clock}")

    def _write(self, dice: random.Random) -> None:
        self._history.burst(BURST)
        self._history.unsettle(dice)
        self._history.burst(BURST)

    def _disturbed_capture(self, run_id: str, dice: random.Random) -> str:
        delay = dice.uniform(0, 0.8)
        process = self._scene.start_capture(run_id)
        _wait(delay, lambda: not process.running)
        process.signal(signal.SIGKILL)
        process.wait()
        return f", capture after {delay:.2f} s"

    def _disturbed_lanes(
        self, run_id: str, victim: Victim, delay: float, dice: random.Random
    ) -> tuple[StepProcess | None, bool]:
        """The lane that sleeps, and whether the run was green in spite of it all."""
        scene = self._scene
        opened = scene.open(run_id)
        lanes = [scene.start_lane(opened, lane) for lane in range(2)]
        _wait(delay, lambda: not any(lane.running for lane in lanes))
        first, second = dice.sample(lanes, 2)
        sleeping = None
        match victim:
            case Victim.LANE:
                first.signal(signal.SIGKILL)
            case Victim.LANES | Victim.CAPTURE:
                first.signal(signal.SIGKILL)
                second.signal(signal.SIGKILL)
            case Victim.SPARK:
                _kill(spark_processes(self._spark)[0])
            case Victim.WORKER:
                workers = spark_processes(self._spark)[1]
                if workers:
                    _kill(dice.choice(workers))
            case Victim.TARGET:
                scene.target_server.kill()
                scene.target_server.start()
            case Victim.SLEEPER:
                first.signal(signal.SIGSTOP)
                sleeping = first
            case Victim.ZOMBIE:
                first.signal(signal.SIGSTOP)
                second.signal(signal.SIGKILL)
                sleeping = first
        reports = [lane.report() for lane in lanes if lane is not sleeping]
        try:
            scene.close(opened)
        except ParallelApplyError as error:
            if victim in COVERED:
                self._say(f"not covered: {error}")
                for lane, report in zip([lane for lane in lanes if lane is not sleeping], reports, strict=True):
                    self._say(f"--- {lane.name}: {report}{lane.tail()}")
            return sleeping, False
        return sleeping, True

    @property
    def _spark(self) -> Path:
        assert self._scene.spark_directory is not None
        return self._scene.spark_directory

    def _require_equal(self, number: int) -> None:
        """The source is quiet now: bring the rest, without Spark, and compare."""
        quiet = replace(self._scene, rig=replace(self._scene.rig, stage=None))
        quiet.rerun(f"rest {number}")
        quiet.require_equal()

    def _wake(self, sleeping: StepProcess, number: int) -> None:
        """It must find that everything is over, and change nothing."""
        before = self._scene.positions()
        sleeping.signal(signal.SIGCONT)
        sleeping.wait()
        assert self._scene.positions() == before
        self._scene.require_equal()


WAYS = [
    (Consistency.CHANNEL, EpochProtocol.AUTO),
    (Consistency.EPOCH, EpochProtocol.LEADER_MERGE),
    (Consistency.EPOCH, EpochProtocol.TWO_PHASE),
]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("consistency", "protocol"), WAYS)
def test_random_moments(
    spark_scene: Scene,
    source_dsn: str,
    say: Callable[[str], None],
    consistency: Consistency,
    protocol: EpochProtocol,
) -> None:
    # Each unit is a Spark job; a moment's few thousand changes need not be dozens of them.
    spark_scene.rig = spark_scene.rig.having(
        epoch_max_changes=800, unit_max_bytes=2**20, consistency=consistency, epoch_protocol=protocol
    )
    spark_scene.rig.both(*TABLES)
    play(spark_scene, EverydayHistory(source_dsn, SEED), MOMENTS, say)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("consistency", "protocol"), WAYS)
def test_random_moments_of_tables_of_every_awkward_kind(
    spark_scene: Scene,
    source_dsn: str,
    say: Callable[[str], None],
    consistency: Consistency,
    protocol: EpochProtocol,
) -> None:
    spark_scene.rig = spark_scene.rig.having(
        channels=8,
        lanes=2,
        epoch_max_changes=800,
        tables=TablePatterns(include=("*.*",)),
        consistency=consistency,
        epoch_protocol=protocol,
    )
    make_tables(spark_scene.rig)
    play(spark_scene, AwkwardHistory(source_dsn, SEED), AWKWARD_MOMENTS, say)


def play(scene: Scene, history: History, count: int, say: Callable[[str], None]) -> None:
    say(f"\nCRASH_SEED={SEED} CRASH_MOMENTS={count}")
    scene.rig.prepare()
    try:
        moments = Moments(scene, history, say)
        for number in range(count):
            moments.play(number)
    finally:
        history.close()


def _wait(seconds: float, over: Callable[[], bool]) -> None:
    """A random delay, which is the test's input; shorter when there is nothing left to disturb."""
    ended = threading.Event()
    deadline = time.monotonic() + seconds
    while not over() and (left := deadline - time.monotonic()) > 0:
        ended.wait(min(left, 0.02))


def _kill(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

"""A long history into a target of another kind through Spark, killed at random moments: exact, nothing twice or half.

`TARGET_KILLS_CHANGES` and `TARGET_KILLS_MOMENTS` say how long it is, and how often something dies; `CRASH_SEED` repeats
victims and delays.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.mariadb import missing_programs
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, Start
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.crash.conftest import WarmSpark, crash_config
from tests.crash.scene import Scene, spark_processes
from tests.crash.struck_targets import ORPHANS, READERS, TARGETS, Reader, asleep
from tests.crash.transfers import CHANGES, FIRST, TABLES
from tests.hunt.targets.protocol import HuntedTarget
from tests.support.rig import Rig, execute
from tests.support.steps import Steps

SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
CHANGES_IN_ALL = int(os.environ.get("TARGET_KILLS_CHANGES") or 600_000)
MOMENTS = int(os.environ.get("TARGET_KILLS_MOMENTS") or 20)
FIRST_DELAY_SECONDS = 5.0
ZOMBIE_TRANSACTIONS = 400
LANE_SECONDS = 900
"""A moment's changes, on a machine that does other things, too."""


class Victim(StrEnum):
    """The process that dies."""

    LANE = "a lane"
    LANES = "all lanes"
    WORKER = "a Python worker of Spark"
    SPARK = "the Spark server"
    TARGET = "the target's server"


@dataclass
class Beside:
    """A reader that looks again and again while lanes work. `seen`: what it should not have seen."""

    reader: Reader
    looks: int = 0
    seen: list[str] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                try:
                    found = self.reader.look()
                except Exception as error:  # noqa: BLE001  # told by the test
                    found = f"{type(error).__name__}: {error}"
                self.looks += 1
                self.seen += [found] if found else []
                over.wait(0.05)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.reader.close()


@pytest.fixture(params=[pytest.param(name, id=name) for name in TARGETS])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "mariadb" and (missing := missing_programs()):
        pytest.skip(f"MariaDB is not installed here: {', '.join(missing)}")
    return str(request.param)


@pytest.fixture
def hunted(name: str, tmp_path: Path) -> Iterator[HuntedTarget]:
    found = TARGETS[name](tmp_path)
    found.fresh()
    yield found
    found.close()


@pytest.fixture
def struck(
    hunted: HuntedTarget,
    source_dsn: str,
    ledger_dsn: str,
    target_server: PostgresServer,
    warm_spark: WarmSpark,
    steps: Steps,
    tmp_path: Path,
) -> Scene:
    """Its Spark may die, and its target; the ledger's server is everybody's and must live."""
    config = replace(
        crash_config(tmp_path), channels=2, epoch_max_changes=3000, unit_max_bytes=2**22, start=Start.EMPTY,
        ddl=DdlPolicy.REFUSE, consistency=Consistency.EPOCH, lease=timedelta(seconds=10),
    )  # fmt: skip
    execute(source_dsn, *TABLES)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=hunted.url, ledger_dsn=ledger_dsn)
    rig = replace(
        rig,
        stage=lambda opened: open_stage(
            access=ConnectAccess(url=warm_spark.url, session_id=warm_spark.session_id),
            config=rig.config,
            target=rig.target,
        ),
    )
    hunted.run(
        [
            "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL)",
            "CREATE TABLE entry (id bigint PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL)",
        ]
    )
    return Scene(
        rig=rig, target_server=target_server, steps=steps, spark_directory=warm_spark.directory,
        session_id=warm_spark.session_id, step_changes=200_000,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_a_history_that_is_killed_at_random_moments_is_there_once_and_whole(
    struck: Scene, hunted: HuntedTarget, name: str, say: Callable[[str], None]
) -> None:
    say(f"\nCRASH_SEED={SEED} TARGET_KILLS_CHANGES={CHANGES_IN_ALL} TARGET_KILLS_MOMENTS={MOMENTS}")
    rig, beside = struck.rig, Beside(READERS[name](hunted))
    rig.prepare()
    rig.write(FIRST)
    rig.run("first")
    dice, seconds, struck_count = random.Random(SEED), [FIRST_DELAY_SECONDS], 0
    victims = [victim for victim in Victim if victim is not Victim.TARGET or name in ("mariadb", "kafka")]
    with beside.looking():
        for moment in range(MOMENTS):
            began = time.monotonic()
            rig.write(f"CALL transfer({CHANGES_IN_ALL // CHANGES // MOMENTS})")
            rig.capture(f"moment {moment}")
            plan(rig.config, rig.target)
            victim, delay = victims[moment % len(victims)], dice.uniform(0, min(seconds))
            written = time.monotonic()
            at_work, told = _struck_run(struck, hunted, f"moment {moment}", victim, delay, dice)
            # The fastest run was disturbed the least: moments are spread over what it took.
            seconds.append(max(time.monotonic() - written, 1.0))
            struck_count += bool(at_work)
            taken = f"{time.monotonic() - began:.0f} s"
            say(f"moment {moment}: {victim} after {delay:.1f} s, {at_work} lanes at work, {told}; {taken}")
            assert beside.seen == []
        zombie = _zombie(struck, name, "with a zombie")
    assert struck_count >= MOMENTS / 2
    assert beside.looks > MOMENTS
    assert beside.seen == []
    assert hunted.differences(rig) == []
    assert len({position.seqno for position in struck.positions()}) == 1
    rig.run("last")
    assert ORPHANS[name](hunted) == []
    say(f"{struck_count} of {MOMENTS} moments struck lanes at work; a reader looked {beside.looks} times; {zombie}")


def _struck_run(
    scene: Scene, hunted: HuntedTarget, run_id: str, victim: Victim, delay: float, dice: random.Random
) -> tuple[int, str]:
    """A run in which something dies, repeated until it is green: how many lanes were at work then, and what became of
    it at first.
    """
    opened = scene.open(run_id)
    lanes = [scene.start_lane(opened, lane) for lane in range(2)]
    deadline = time.monotonic() + delay
    while any(lane.running for lane in lanes) and time.monotonic() < deadline:
        time.sleep(0.02)
    at_work = sum(lane.running for lane in lanes)
    assert scene.spark_directory is not None
    server, workers = spark_processes(scene.spark_directory)
    match victim:
        case Victim.LANE:
            dice.choice(lanes).signal(signal.SIGKILL)
        case Victim.LANES:
            for lane in lanes:
                lane.signal(signal.SIGKILL)
        case Victim.WORKER if workers:
            _kill(dice.choice(workers))
        case Victim.SPARK:
            _kill(server)
        case Victim.TARGET:
            hunted.crash()
    for lane in lanes:
        lane.wait(LANE_SECONDS)
    try:
        scene.close(opened)
        green = "green at first"
    except ParallelApplyError as error:
        green = f"red at first ({error.message[:80]})"
        scene.rerun(run_id, tries=3)
    return at_work, green


def _zombie(scene: Scene, name: str, run_id: str) -> str:
    """A lane wakes when its commit was made by another one: how it ends. Positions stay as they are."""
    scene.rig.write(f"CALL transfer({ZOMBIE_TRANSACTIONS})")
    scene.rig.capture(run_id)
    plan(scene.rig.config, scene.rig.target)
    opened = scene.open(run_id)
    lane = scene.start_lane(opened, fault=replace(asleep(name), signal=signal.SIGSTOP))
    lane.wait_stopped(120)
    scene.rerun(run_id)
    before = scene.positions()
    lane.signal(signal.SIGCONT)
    lane.wait()
    assert scene.positions() == before
    return lane.tail(2).strip()[-200:]


def _kill(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

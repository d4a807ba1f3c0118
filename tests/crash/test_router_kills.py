"""A router killed at random moments: the log serves what it held, and the run itself ends green and equal.

`CRASH_SEED` repeats a sequence of delays; `CRASH_MOMENTS` says how many moments.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.config import RouterEndpoint, StoreName
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.routers import RouterCommand

SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
MOMENTS = int(os.environ.get("CRASH_MOMENTS") or 5)
MANY_MOMENTS = int(os.environ.get("CRASH_MOMENTS") or 20)
TABLE = "CREATE TABLE t (tenant integer, id integer, v text, PRIMARY KEY (tenant, id))"
LONGEST_DELAY_SECONDS = 1.5
EARLY = 0.2
"""The part of the moments that may strike before the lanes begin, while the router is fed."""


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterCommand]:
    (tmp_path / "logs").mkdir()
    running = RouterCommand(tmp_path / "logs", "--store-memory-mb", "1")
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path, router: RouterCommand) -> Callable[..., Rig]:
    def make(store: StoreName, **changes: Any) -> Rig:
        from tests.crash.conftest import crash_config

        config = crash_config(tmp_path / "logs")
        made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn).having(
            log_url=str(tmp_path / "logs" / "p"),
            store=store,
            router=RouterEndpoint(conn_id="router", url=router.url),
            **changes,
        )
        execute(source_dsn, TABLE)
        execute(target_dsn, TABLE)
        return made

    return make


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("moments", "routing"),
    [
        pytest.param(MOMENTS, {"partitioner": "shard", "shard_by": (("*", "tenant"),)}, id="by shard"),
        pytest.param(MANY_MOMENTS, {}, id="by key"),
    ],
)
def test_a_router_killed_at_random_moments_makes_a_run_slower_and_never_wrong(
    rig: Callable[..., Rig],
    router: RouterCommand,
    moments: int,
    routing: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    pipeline = rig(StoreName.MEMORY, **routing)
    pipeline.prepare()
    dice = random.Random(SEED)
    served = [play(pipeline, router, dice, number) for number in range(moments)]
    say(f"\nCRASH_SEED={SEED}: by moment, units from the router and in all: {served}")
    assert sum(streams for streams, _ in served) > 0, "no unit of any moment came from the router"


def play(pipeline: Rig, router: RouterCommand, dice: random.Random, moment: int) -> tuple[int, int]:
    """One run, the router killed while it is under way; how many of its units were streams, of how many."""
    for number in range(6):
        tenants = f"(i + {dice.randrange(9)}) % 7"
        pipeline.write(
            f"INSERT INTO t SELECT {tenants}, i, 'm{moment}-{number}' FROM generate_series(1, 300) i "
            f"ON CONFLICT (tenant, id) DO UPDATE SET v = excluded.v",
            f"DELETE FROM t WHERE id % 5 = {dice.randrange(5)} AND tenant = {dice.randrange(7)}",
        )
    stages: list[LocalStage] = []
    has_begun = threading.Event()
    if dice.random() < EARLY:
        has_begun.set()

    def stage(opened: object) -> LocalStage:
        has_begun.set()
        stages.append(LocalStage(pipeline.config.log_url, pipeline.target, config=pipeline.config))
        return stages[-1]

    delay = dice.random() * LONGEST_DELAY_SECONDS

    def strike() -> None:
        has_begun.wait()
        time.sleep(delay)
        router.end(signal.SIGKILL)

    striking = threading.Thread(target=strike)
    striking.start()
    try:
        Rig(config=pipeline.config, source_dsn=pipeline.source_dsn, target_dsn=pipeline.target_dsn, stage=stage).run(
            f"moment {moment}"
        )
    finally:
        has_begun.set()
        striking.join()
    comparison = pipeline.comparison()
    assert comparison.equal, comparison
    router.start()
    found = [one for each in stages for one in each.served]
    return sum(found), len(found)

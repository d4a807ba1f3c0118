"""A router killed at random moments while it streams: the log serves what it held, and runs end green and equal.

`CRASH_SEED` repeats a sequence of delays; `CRASH_MOMENTS` says how many moments.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.apply import capture_turn
from airflow_parallel_apply.pipeline.config import RouterEndpoint, StoreName
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.router.plan import plan
from tests.crash.conftest import crash_config
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.routers import ForkedRouter
from tests.support.variants import GATED

SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
MOMENTS = int(os.environ.get("CRASH_MOMENTS") or 5)
MANY_MOMENTS = int(os.environ.get("CRASH_MOMENTS") or 20)
TABLE = "CREATE TABLE t (tenant integer, id integer, v text, PRIMARY KEY (tenant, id))"
TENANTS_PER_CHANNEL = 4
ROWS = 25
"""The rows of a transaction, all of one tenant."""
EPOCH_CHANGES = 60
"""Several epochs a moment, so that each channel has several units."""
STEP_CHANGES = 200
"""The changes that are captured at once: segments are small, and a unit's stream has several batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`served`: a router's URL is the pipelines' log, so it has to come back; else a dead one is left alone. `targets`:
    pipelines that follow one history.
    """

    moments: int = MOMENTS
    targets: int = 1
    served: bool = False
    changes: dict[str, Any] = field(default_factory=dict)


BY_SHARD: dict[str, Any] = {"partitioner": "shard", "shard_by": (("*", "tenant"),)}
IN_MEMORY: dict[str, Any] = {"store": StoreName.MEMORY, **BY_SHARD}
WAYS = {
    "by shard": Way(changes=IN_MEMORY),
    "by key": Way(moments=MANY_MOMENTS, changes={"store": StoreName.MEMORY}),
    "64 channels": Way(changes={**IN_MEMORY, "channels": 64}),
    "two targets": Way(targets=2, changes=IN_MEMORY),
    "served log": Way(served=True, changes={"store": StoreName.LOG}),
    "served memory": Way(served=True, changes=IN_MEMORY),
}


@dataclass(slots=True)
class Streaming:
    """Sees what comes from the router, in whatever thread of this process."""

    waits_for_kill: bool
    """The first rows are kept from who reads them until the router was killed."""
    rows_came: threading.Event = field(default_factory=threading.Event)
    is_killed: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def wait_for_rows(self) -> None:
        """Until the first rows of a stream are here, or the run is over."""
        while not self.rows_came.wait(0.01) and not self.is_over.is_set():
            continue

    @contextmanager
    def watching(self) -> Iterator[None]:
        original = StreamClient.stream

        def stream(client: StreamClient, ticket: Any) -> Iterator[pa.RecordBatch]:
            for batch in original(client, ticket):
                self.rows_came.set()
                if self.waits_for_kill:
                    assert self.is_killed.wait(240)
                yield batch

        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(StreamClient, "stream", stream)
            yield


@pytest.fixture
def router(tmp_path: Path) -> Iterator[ForkedRouter]:
    (tmp_path / "logs").mkdir()
    running = ForkedRouter(tmp_path / "logs", memory_bytes=2**18)
    yield running
    running.kill()


@pytest.fixture
def rigs(
    source_dsn: str, target_server: PostgresServer, target_dsn: str, tmp_path: Path, router: ForkedRouter
) -> Iterator[Callable[[Way], list[Rig]]]:
    others: list[str] = []

    def make(way: Way) -> list[Rig]:
        config = replace(
            crash_config(tmp_path / "logs"),
            log_url=f"{router.url}/p" if way.served else str(tmp_path / "logs" / "p"),
            log_directory=str(tmp_path / "logs" / "p") if way.served else "",
            slot="all",
            epoch_max_changes=EPOCH_CHANGES,
            unit_max_bytes=1000,
            router=RouterEndpoint(conn_id="router", url=router.url),
            **way.changes,
        )
        execute(source_dsn, TABLE)
        made = []
        for number in range(way.targets):
            dsn = target_dsn
            if number:
                others.append(f"router_{uuid4().hex[:8]}")
                dsn = target_server.create_database(others[-1])
            execute(dsn, TABLE)
            made.append(Rig(config=replace(config, pipeline=f"p{number}"), source_dsn=source_dsn, target_dsn=dsn))
        return made

    yield make
    # Origins of a database that stays take the server's room for them.
    execute(target_server.dsn(), *(f"DROP DATABASE {name} WITH (FORCE)" for name in others))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, id=name, marks=GATED if name == "by shard" else pytest.mark.long) for name, way in WAYS.items()],
)
def test_a_router_killed_while_it_streams_makes_runs_slower_and_never_wrong(
    rigs: Callable[[Way], list[Rig]],
    router: ForkedRouter,
    way: Way,
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[str], None],
) -> None:
    monkeypatch.setattr(capture_turn, "STEP_CHANGES", STEP_CHANGES)
    monkeypatch.setattr(preparing, "FIRST_CAPTURE_CHANGES", STEP_CHANGES)
    pipelines = rigs(way)
    for pipeline in pipelines:
        pipeline.prepare()
    dice = random.Random(SEED)
    streamed_seconds, hits, served = 0.1, 0, []
    for moment in range(way.moments):
        write(pipelines[0], dice, moment)
        delay = dice.random() * streamed_seconds if moment else None
        found = play(pipelines, way, router, f"moment {moment}", delay)
        streamed_seconds = found.seconds
        hits += found.is_hit
        served.append((found.streams, found.units))
        for pipeline in pipelines:
            comparison = pipeline.comparison()
            assert comparison.equal, comparison
    say(f"\nCRASH_SEED={SEED}: {hits} of {way.moments} while units were streamed; streams and units: {served}")
    assert hits, "the first kill came while the router streamed"


def write(pipeline: Rig, dice: random.Random, moment: int) -> None:
    """Transactions of one tenant each, so that by shard they are their channels'."""
    tenants = pipeline.config.channels * TENANTS_PER_CHANNEL
    statements = []
    for number in dice.sample(range(tenants), tenants):
        statements += [
            f"INSERT INTO t SELECT {number}, i, 'm{moment}' FROM generate_series(1, {ROWS}) i "
            "ON CONFLICT (tenant, id) DO UPDATE SET v = t.v || excluded.v",
            f"DELETE FROM t WHERE tenant = {number} AND id % 5 = {dice.randrange(5)}",
        ]
    pipeline.write(*statements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`is_hit`: the router was killed behind the first rows that it streamed, and before the last unit was applied.
    `seconds`: between these two.
    """

    is_hit: bool
    seconds: float
    streams: int
    units: int


def play(pipelines: Sequence[Rig], way: Way, router: ForkedRouter, run_id: str, delay: float | None) -> Moment:
    """A run of each pipeline, side by side, and the router killed meanwhile, `delay` seconds behind the first rows.
    None: while these wait to be read.
    """
    streaming = Streaming(waits_for_kill=delay is None)
    stages: list[LocalStage] = []
    hit: list[bool] = []

    def strike() -> None:
        streaming.wait_for_rows()
        streaming.is_over.wait(delay or 0)
        hit.append(streaming.rows_came.is_set() and not streaming.is_over.is_set())
        router.kill()
        streaming.is_killed.set()
        if way.served:
            router.start()

    def stage(pipeline: Rig) -> LocalStage:
        stages.append(LocalStage(pipeline.config.log_url, pipeline.target, config=pipeline.config))
        return stages[-1]

    def applied(pipeline: Rig) -> Callable[[], object]:
        staging = replace(pipeline, stage=lambda _: stage(pipeline))
        staging.capture(run_id)
        plan(pipeline.config, pipeline.target)
        opened = staging.open(run_id)
        reports = staging.apply(opened)
        return lambda: pipeline.close(opened, reports)

    with streaming.watching(), ThreadPoolExecutor(len(pipelines)) as pool:
        striking = threading.Thread(target=strike)
        striking.start()
        try:
            running = [pool.submit(applied, pipeline) for pipeline in pipelines]
            streaming.wait_for_rows()
            began = time.monotonic()
            ending = [one.result() for one in running]
            seconds = time.monotonic() - began
        finally:
            streaming.is_over.set()
            striking.join()
    for close in ending:
        close()
    if not way.served:
        router.start()
    served = [one for stage in stages for one in stage.served]
    return Moment(is_hit=hit == [True], seconds=seconds, streams=sum(served), units=len(served))

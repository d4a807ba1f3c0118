"""The store `memory` through Spark: its jobs read streams of a router, and the log where a stream breaks for good."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, StoreName, TablePatterns
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.store.memory.store import MemoryStore
from airflow_parallel_apply.pipeline.store.protocol import FileBranch, StoreBranch, StreamBranch
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.router.feeding.feedings import Feedings
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.memory_router import MemoryRouter, memory_router
from tests.support.rig import Rig


@pytest.fixture
def router(tmp_path: Path) -> Iterator[MemoryRouter]:
    with memory_router(tmp_path) as running:
        yield running


@pytest.fixture
def rig(
    source_server: PostgresServer,
    target_server: PostgresServer,
    source_database: str,
    target_database: str,
    spark_server: ServerLease,
    spark_session_id: str,
    router: MemoryRouter,
    tmp_path: Path,
) -> Rig:
    for server, database in ((source_server, source_database), (target_server, target_database)):
        server.run("pgbench", "-i", "-I", "dtp", "--quiet", database=database)
    config = PipelineConfig(
        pipeline=source_database,
        start=Start.EMPTY,
        log_url=str(tmp_path / "log"),
        partitioner="shard",
        shard_by=(("*", "tid % 7"),),
        channels=3,
        lanes=2,
        tables=TablePatterns(include=("public.pgbench_tellers", "public.pgbench_history")),
        store=StoreName.MEMORY,
        router=router.endpoint,
    )
    target = Endpoint(conn_id="target", url=target_server.dsn(target_database))
    access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)
    made = Rig(
        config=config,
        source_dsn=source_server.dsn(source_database),
        target_dsn=target.url,
        stage=lambda opened: open_stage(access=access, config=config, target=target),
    )
    made.prepare()
    source_server.run("pgbench", "-i", "-I", "g", "--quiet", database=source_database)
    made.run("load")
    return made


@pytest.fixture
def pgbench(source_server: PostgresServer, source_database: str, rig: Rig) -> Callable[[], None]:
    return lambda: source_server.run("pgbench", "-n", "-t", "300", database=source_database)


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> list[StoreBranch]:
    """What the store gave, unit by unit."""
    found: list[StoreBranch] = []
    branch = MemoryStore.branch

    def seen(self: MemoryStore, unit: Unit, *, parts: int = 1) -> StoreBranch:
        found.append(branch(self, unit, parts=parts))
        return found[-1]

    monkeypatch.setattr(MemoryStore, "branch", seen)
    return found


@pytest.mark.timeout(600)
def test_a_task_killed_in_mid_stream_is_tried_again_and_a_broken_stream_is_read_from_the_log(
    rig: Rig,
    router: MemoryRouter,
    pgbench: Callable[[], None],
    branches: list[StoreBranch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    branches.clear()
    killed: list[int] = []
    answer = Feedings.answer

    def killing(self: Feedings, ticket: Ticket) -> Iterator[pa.RecordBatch] | None:
        found = answer(self, ticket)
        return None if found is None else halved(found)

    def halved(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in found:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if not killed:
                killed.extend(callers_of(router))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
            yield batch.slice(half)

    monkeypatch.setattr(Feedings, "answer", killing)
    pgbench()
    rig.run("killed")
    assert killed
    assert branches
    assert all(isinstance(one, StreamBranch) for one in branches)
    assert rig.comparison().equal

    def breaking(self: Feedings, ticket: Ticket) -> Iterator[pa.RecordBatch] | None:
        router.stop()
        return answer(self, ticket)

    monkeypatch.setattr(Feedings, "answer", breaking)
    branches.clear()
    pgbench()
    rig.run("gone")
    assert isinstance(branches[0], StreamBranch)
    assert isinstance(branches[-1], FileBranch)
    assert rig.comparison().equal


def callers_of(router: MemoryRouter) -> list[int]:
    """The processes that are connected to a router, but for this one."""
    port = int(router.endpoint.url.rpartition(":")[2])
    inodes = set()
    # gRPC speaks IPv4 through sockets of IPv6.
    lines = [line for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    for fields in map(str.split, lines):
        if int(fields[2].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(path.readlink()) in inodes:
                found.add(int(path.parts[2]))
    return sorted(found - {os.getpid()})

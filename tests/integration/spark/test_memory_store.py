"""The store `memory` through Spark: its jobs read streams of a router, and the log where a stream breaks for good."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.store.memory.store import MemoryStore
from airflow_parallel_apply.pipeline.store.protocol import FileBranch, StoreBranch, StreamBranch
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.router.feeding.feedings import Feedings
from tests.integration.spark.conftest import BY_TELLER
from tests.support.memory_router import MemoryRouter, memory_router
from tests.support.processes import holders_of
from tests.support.rig import Rig
from tests.support.variants import gated


@pytest.fixture
def router(tmp_path: Path) -> Iterator[MemoryRouter]:
    with memory_router(tmp_path) as running:
        yield running


@pytest.fixture
def rig(pgbench_rig: Callable[..., Rig], pgbench: Callable[..., None], router: MemoryRouter) -> Rig:
    made = pgbench_rig(**BY_TELLER, store=StoreName.MEMORY, router=router.endpoint)
    made.prepare()
    pgbench("-i", "-I", "g", "--quiet")
    made.run("load")
    return made


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> list[StoreBranch]:
    """The branches that the store gave, unit by unit."""
    found: list[StoreBranch] = []
    branch = MemoryStore.branch

    def seen(self: MemoryStore, unit: Unit, *, parts: int = 1) -> StoreBranch:
        found.append(branch(self, unit, parts=parts))
        return found[-1]

    monkeypatch.setattr(MemoryStore, "branch", seen)
    return found


@gated
@pytest.mark.timeout(600)
def test_a_task_killed_in_mid_stream_is_tried_again_and_a_broken_stream_is_read_from_the_log(
    rig: Rig,
    router: MemoryRouter,
    pgbench: Callable[..., None],
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
    pgbench("-n", "-t", "300")
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
    pgbench("-n", "-t", "300")
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
    return sorted(holders_of(inodes) - {os.getpid()})

"""The embedded router lives as long as somebody uses it; a pipeline needs no slot for it, nor for its channels."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, StoreName
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.embedded.lease import is_supervised
from airflow_parallel_apply.pipeline.store.memory.link import router_layout
from airflow_parallel_apply.router.embedded import RouterSettings, embedded_router, stop_embedded_router
from airflow_parallel_apply.router.memory_pool import POOL, VARIABLE
from airflow_parallel_apply.router.plan import plan
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig
from tests.support.variants import gated

CHANNELS = 8


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))
    yield
    stop_embedded_router()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 180
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_run_of_one_lane_with_eight_channels_streams_all_of_them(
    source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    config = PipelineConfig(
        pipeline="one_slot",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=CHANNELS,
        lanes=1,
        store=StoreName.MEMORY,
        partitioner="shard",
        shard_by=(("*", "tenant"),),
        epoch_max_changes=200,
        unit_max_bytes=4000,
    )
    stages: list[LocalStage] = []

    def stage(opened: object) -> LocalStage:
        stages.append(LocalStage(config.log_url, rig.target, config=config))
        return stages[-1]

    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn, stage=stage)
    rig.both("CREATE TABLE t (tenant integer, id integer, PRIMARY KEY (tenant, id))")
    rig.prepare()
    for number in range(40):
        rig.write(f"INSERT INTO t SELECT {number % 24}, i FROM generate_series({number * 100}, {number * 100 + 60}) i")
    rig.capture("run")
    report = plan(config, rig.target).to_json()
    assert report["store"]["name"] == "memory"
    assert report["store"]["failure"] == ""
    opened = rig.open("run")
    closed = rig.close(opened, rig.apply(opened)).to_json()
    assert sum(one["row_count"] for one in closed["store"]["channels"]) == 40 * 61
    assert len(closed["store"]["channels"]) == CHANNELS
    assert rig.comparison().equal
    assert len(stages) == 1
    assert stages[0].served
    assert all(stages[0].served)
    status = read_status(rig.target, config.pipeline, config.log_url)
    assert status.store is not None
    assert status.store.row_count == 40 * 61
    assert len(status.store.channels) == CHANNELS


@gated
def test_it_ends_when_idle_and_a_killed_one_is_started_anew_by_the_next_who_needs_it() -> None:
    settings = RouterSettings(idle_seconds=0.5)
    layout = router_layout()
    with embedded_router(settings):
        first = layout.read_values()
        assert first is not None
        assert layout.state.stat().st_mode & 0o077 == 0
        os.kill(first["supervisor_pid"], signal.SIGKILL)
        assert eventually(lambda: not is_supervised(layout))
        with embedded_router(settings):
            second = layout.read_values()
            assert second is not None
            assert second["supervisor_pid"] != first["supervisor_pid"]
    assert eventually(lambda: not is_supervised(layout))
    assert not layout.state.exists()
    assert not layout.work.exists()


@gated
def test_its_process_has_the_memory_pool_that_routers_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with embedded_router():
        values = router_layout().read_values()
        assert values is not None
        environment = Path(f"/proc/{values['supervisor_pid']}/environ").read_bytes()
    assert f"{VARIABLE}={POOL}".encode() in environment.split(b"\0")

"""A router's content is measured by pipeline and channel, as long as that is a bounded number of series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from airflow_parallel_apply.pipeline.store.protocol import StoreStats
from airflow_parallel_apply.router.feeding.feedings import FeedingLimits, Feedings
from airflow_parallel_apply.router.service.logs import LogPaths, ServedLogs
from airflow_parallel_apply.router.service.metrics import MOST_CHANNELS, HeldCollector
from airflow_parallel_apply.router.service.protocol import HeldPipeline


class Holding(Feedings):
    """Says that it holds so many pipelines of 64 channels."""

    def __init__(self, directory: Path, pipelines: int) -> None:
        super().__init__(ServedLogs(LogPaths(within=directory)), FeedingLimits(), directory)
        self._pipelines = pipelines

    def channels(self) -> Mapping[HeldPipeline, Sequence[StoreStats]]:
        one = [
            StoreStats(channel=channel, row_count=7, file_bytes=20, file_count=0, memory_bytes=10, blocked_seconds=1.5)
            for channel in range(64)
        ]
        return {HeldPipeline("log", f"p{number}", "abc"): one for number in range(self._pipelines)}


def told(held: Feedings | None) -> str:
    registry = CollectorRegistry()
    registry.register(HeldCollector(lambda: 0, held))
    return generate_latest(registry).decode()


def test_each_channel_has_its_rows_waiting_bytes_and_blocked_time(tmp_path: Path) -> None:
    found = told(Holding(tmp_path, 2))
    labels = 'channel="63",log="log",pipeline="p1"'
    assert f'router_channel_rows_total{{{labels},routing="abc"}} 7.0' in found
    assert f'router_channel_blocked_seconds_total{{{labels},routing="abc"}} 1.5' in found
    assert f'router_channel_waiting_bytes{{{labels},place="memory",routing="abc"}} 10.0' in found
    assert f'router_channel_waiting_bytes{{{labels},place="disk",routing="abc"}} 20.0' in found


def test_of_too_many_channels_there_are_the_sums_alone(tmp_path: Path) -> None:
    enough = MOST_CHANNELS // 64
    assert told(Holding(tmp_path, enough)).count("router_channel_rows_total{") == MOST_CHANNELS
    found = told(Holding(tmp_path, enough + 1))
    assert "router_channel_rows_total{" not in found
    assert 'router_held{name="rows_total"}' in found


def test_a_router_that_holds_no_rows_tells_of_no_channel() -> None:
    assert "router_channel" not in told(None)

"""Costs of stores are told from the log alone, and the recommendation follows from them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.router.explain import Explanation, explain, show
from airflow_parallel_apply.router.store_costs import recommended
from tests.support.written_log import Change, append, make_log

LIMITS = EpochLimits(max_changes=500, max_bytes=2**26)


@pytest.fixture(scope="module")
def log_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("log") / "log")
    make_log(url)
    append(url, 0, [[Change("I", number, "a" * 40)] for number in range(3000)])
    return url


def explained(log_url: str, routing: Routing) -> Explanation:
    return explain(log_url, routing=routing, limits=LIMITS)


def by_shard(channels: int) -> Routing:
    return Routing(channels=channels, partitioner="shard", shard_by=(("*", "id % 24"),))


def test_by_shard_each_channel_reads_the_log_and_a_store_that_is_fed_reads_it_once(log_url: str) -> None:
    found = explained(log_url, by_shard(8))
    costs = {cost.store: cost for cost in found.costs}
    once = costs[StoreName.MEMORY].read_bytes
    assert costs[StoreName.LOG].read_bytes == pytest.approx(8 * once, rel=0.01)
    assert costs[StoreName.CHANNEL_LOG].written_bytes == pytest.approx(once, rel=0.01)
    assert once <= sum(path.stat().st_size for path in Path(log_url).glob("segments/*.rows.parquet"))
    assert costs[StoreName.MEMORY].waiting_bytes == sum(found.bytes_)
    assert recommended(found.costs)[0] is StoreName.CHANNEL_LOG


def test_by_key_channels_read_about_one_scan_and_the_log_is_recommended(log_url: str) -> None:
    for channels in (1, 2):
        found = explained(log_url, Routing(channels=channels))
        assert recommended(found.costs)[0] is StoreName.LOG
    assert explained(log_url, Routing(channels=2)).to_json()["recommended_store"] == "log"


def test_a_person_sees_bytes_and_a_bar_by_channel_and_what_is_recommended(log_url: str) -> None:
    out = StringIO()
    show(explained(log_url, by_shard(8)), Console(file=out, width=140))
    told = out.getvalue()
    assert "recommended: store=channel_log: the channels would read the log 8.0 times instead of once" in told
    assert "█" in told
    assert "MB" in told

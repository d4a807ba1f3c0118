"""The store `auto` follows partitioner, channels and consistency, and comes to what `explain` recommends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig, StoreName
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from airflow_parallel_apply.router.explain import explain
from airflow_parallel_apply.router.store_costs import recommended
from tests.support.written_log import Change, append, make_log

SHARDS: dict[str, Any] = {"partitioner": "shard", "shard_by": (("*", "id % 24"),)}


def config_of(log_url: str = "/log", **changes: Any) -> PipelineConfig:
    return PipelineConfig(pipeline="chosen", log_url=log_url, **changes)


@pytest.mark.parametrize("channels", [1, 2, 8, 64])
def test_by_key_it_is_the_log_whatever_the_number_of_channels(channels: int) -> None:
    assert chosen_store(config_of(channels=channels)).store is StoreName.LOG


@pytest.mark.parametrize(
    "routing",
    [SHARDS, {"partitioner": "round_robin"}, {"partitioner": "of_a_users_own"}],
    ids=["shard", "round_robin", "installed"],
)
def test_by_another_partitioner_it_is_a_log_for_each_channel_once_there_are_many(routing: dict[str, Any]) -> None:
    found = {channels: chosen_store(config_of(channels=channels, **routing)).store for channels in (1, 2, 3, 64)}
    assert found == {
        1: StoreName.LOG,
        2: StoreName.LOG,
        3: StoreName.CHANNEL_LOG,
        64: StoreName.CHANNEL_LOG,
    }


def test_of_a_log_that_a_router_serves_the_router_divides_the_rows() -> None:
    served = config_of("grpc://127.0.0.1:7413/log", channels=8, **SHARDS)
    assert chosen_store(served).store is StoreName.MEMORY
    assert chosen_store(config_of("grpc://127.0.0.1:7413/log", channels=8)).store is StoreName.LOG


@pytest.mark.parametrize("store", list(StoreName))
def test_where_channels_commit_together_one_job_reads_the_log(store: StoreName) -> None:
    together = config_of(channels=8, store=store, consistency=Consistency.EPOCH, **SHARDS)
    assert chosen_store(together).store is StoreName.LOG
    alone = config_of(channels=1, store=StoreName.CHANNEL_LOG, consistency=Consistency.EPOCH)
    assert chosen_store(alone).store is StoreName.CHANNEL_LOG


@pytest.mark.parametrize("store", [store for store in StoreName if store is not StoreName.AUTO])
def test_a_named_store_is_taken_and_needs_no_reason(store: StoreName) -> None:
    for routing in ({}, SHARDS):
        choice = chosen_store(config_of(channels=8, store=store, **routing))
        assert str(choice) == store


def test_a_reason_is_given_for_what_was_chosen() -> None:
    choice = chosen_store(config_of(channels=8, **SHARDS))
    assert str(choice) == "channel_log, since each of 8 channels would read all of the log"


@pytest.mark.parametrize("channels", [1, 2, 3, 8])
def test_by_shard_explain_recommends_what_is_chosen(tmp_path: Path, channels: int) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", number, "a")] for number in range(500)])
    config = config_of(url, channels=channels, **SHARDS)
    found = explain(url, routing=routing_of(config), limits=EpochLimits(max_changes=500, max_bytes=2**26))
    assert recommended(found.costs)[0] is chosen_store(config).store

"""The whole way through Spark: a real pgbench history, its initial load with TRUNCATE included."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import StoreName, TablePatterns
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.pipeline.store.channel_log.store import ChannelLogStore
from airflow_parallel_apply.pipeline.store.protocol import ALL_ROWS, StoreBranch
from airflow_parallel_apply.router.explain import explain
from tests.integration.spark.conftest import BY_TELLER
from tests.support.rig import Rig
from tests.support.variants import gated


@pytest.fixture
def rig(pgbench_rig: Callable[..., Rig]) -> Rig:
    made = pgbench_rig(channels=4, tables=TablePatterns(include=("public.pgbench_*",)), epoch_max_changes=4_000)
    made.prepare()
    return made


@pytest.mark.timeout(600)
def test_a_pgbench_history_arrives_equal_and_a_second_run_goes_on(rig: Rig, pgbench: Callable[..., None]) -> None:
    pgbench("-i", "-I", "g", "--quiet")
    pgbench("-n", "-c", "2", "-t", "1500")
    closed = rig.run("first")
    assert rig.comparison().equal
    loaded, truncates = 100_000 + 10 + 1, 4
    assert closed.rows == loaded + truncates + 4 * 3000

    again = rig.run("first")
    assert (again.rows, again.stop_seqno) == (0, closed.stop_seqno)

    pgbench("-n", "-c", "2", "-t", "200")
    following = rig.run("second")
    assert following.stop_seqno == closed.stop_seqno + 400
    assert rig.comparison().equal


@pytest.mark.long
def test_a_run_cleared_and_rerun_changes_nothing_while_the_source_goes_on_writing(
    rig: Rig, pgbench: Callable[..., None]
) -> None:
    pgbench("-i", "-I", "g", "--quiet")
    closed = rig.run("cleared")
    writing = threading.Thread(target=pgbench, args=("-n", "-t", "300"))
    writing.start()
    try:
        again = rig.run("cleared")
    finally:
        writing.join()
    assert (again.rows, again.stop_seqno) == (0, closed.stop_seqno)
    assert rig.run("next").stop_seqno == closed.stop_seqno + 300
    assert rig.comparison().equal


@gated
@pytest.mark.timeout(600)
def test_channels_read_their_own_logs_and_the_log_where_these_are_lost(
    pgbench_rig: Callable[..., Rig], pgbench: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = pgbench_rig(**BY_TELLER, store=StoreName.CHANNEL_LOG)
    rig.prepare()
    found: list[StoreBranch] = []
    lost: list[str] = []
    is_losing = False
    branch = ChannelLogStore.branch

    def seen(self: ChannelLogStore, unit: Unit, *, parts: int = 1) -> StoreBranch:
        found.append(branch(self, unit, parts=parts))
        if is_losing and found[-1].condition == ALL_ROWS:
            lost.extend(found[-1].files)
            for path in found[-1].files:
                Path(path).unlink()
        return found[-1]

    monkeypatch.setattr(ChannelLogStore, "branch", seen)
    pgbench("-i", "-I", "g", "--quiet")
    rig.run("load")
    found.clear()
    pgbench("-n", "-t", "300")
    rig.run("served")
    assert found
    assert all(one.condition == ALL_ROWS for one in found)
    assert rig.comparison().equal

    is_losing = True
    found.clear()
    pgbench("-n", "-t", "300")
    rig.run("lost")
    assert lost
    assert found[-1].condition != ALL_ROWS
    assert rig.comparison().equal


@gated
def test_explain_tells_why_the_load_is_critical(rig: Rig, pgbench: Callable[..., None]) -> None:
    pgbench("-i", "-I", "g", "--quiet")
    rig.capture("explained")
    told = explain(
        rig.config.log_url, routing=Routing(channels=4), limits=EpochLimits(max_changes=1000, max_bytes=10**9)
    ).to_json()
    assert [(epoch["kind"], epoch["reason"]) for epoch in told["epochs"]] == [("serial", "truncate")]
    assert told["skew"] < 1.2

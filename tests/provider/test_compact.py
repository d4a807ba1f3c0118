"""`CompactOperator` folds the feed of a directory, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.operators.compact import CompactOperator
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, StagedUnit, Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.open import open_target, target_connector
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log

pytestmark = pytest.mark.usefixtures("airflow_home")


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    """A log of three transactions, which its pipeline has fed to a directory."""
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", 1, "a")], [Change("I", 2, "b"), Change("D", 1)], [Change("U", 2, "c")]])
    log = open_reader(url)
    endpoint = Endpoint(conn_id="lake", url=f"files+file://{tmp_path}/lake")
    target = open_target(endpoint, "p", log_url=url)
    target.lay_out(log_id=log.identity.log_id, routing=Routing(channels=1), generation=1)
    target.take(0, generation=1, token="a")
    unit = Unit(
        pipeline="p",
        generation=1,
        kind=Branch(0),
        channels=1,
        token="a",
        after_seqno=-1,
        last_seqno=2,
        row_count=4,
    )
    loader = target_connector(endpoint).loader(
        endpoint, unit, log.state().relations, commit_times=CommitTimes.of_log(log, -1, 2)
    )
    loaded = loader.load(log.rows(-1, 2, in_order=True), "attempt")
    target.commit(unit, [Merge(StagedUnit(unit=unit, tables=loaded.tables, row_count=loaded.row_count, seconds=0.0))])
    return url


@gated
def test_a_task_makes_a_snapshot_and_a_rerun_finds_it(
    log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE", f'{{"conn_type": "parallel_apply_files", "host": "file://{tmp_path}/lake"}}'
    )
    task = CompactOperator(task_id="compact", pipeline="p", target_conn_id="lake", log_url=log_url, remove="true")
    context: Any = {"ti": type("Task", (), {"xcom_push": lambda self, key, value: None})()}
    reports = [task.execute(context) for _ in range(2)]
    assert [(one["made"], one["seqno"], one["rows"]) for one in reports] == [
        (True, 2, {"public.t": 1}),
        (False, 2, {"public.t": 1}),
    ]

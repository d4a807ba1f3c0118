"""Looking for changes where the log's directory is not: what a triggerer sees of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.admin.watch import changes_since, look_for_changes
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from tests.support.rig import Rig
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    rig.both("CREATE TABLE t (id int PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    return rig


def test_changes_are_seen_without_the_log_and_nothing_is_seen_where_there_is_nothing(rig: Rig) -> None:
    before = look_for_changes(rig.config, rig.source, rig.target)
    assert before.reason is None
    away = rig.having(log_url="/no/such/directory").config
    assert changes_since(away, rig.source, rig.target, before) is None
    rig.write("INSERT INTO t VALUES (2)")
    assert changes_since(away, rig.source, rig.target, before) is not None
    rig.run()
    # What the task knew is old: the pipeline was run by somebody else, and the slot is further than that.
    assert changes_since(away, rig.source, rig.target, before) == "the pipeline was run, or changed"
    again = look_for_changes(rig.config, rig.source, rig.target)
    assert again.reason is None
    assert changes_since(away, rig.source, rig.target, again) is None


@gated
def test_a_capture_of_somebody_else_is_for_the_task_to_judge(rig: Rig) -> None:
    before = look_for_changes(rig.config, rig.source, rig.target)
    rig.write("INSERT INTO t VALUES (2)")
    rig.capture("captured by hand")
    rig.capture("captured by hand")
    away = rig.having(log_url="/no/such/directory").config
    assert changes_since(away, rig.source, rig.target, before) == "the source does not stand where the log stood"
    found = look_for_changes(rig.config, rig.source, rig.target)
    assert found.reason == "captured transactions wait to be applied, from seqno 1"

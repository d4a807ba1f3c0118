"""Looking for changes where the log's directory is not: what a triggerer sees of a pipeline."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.watch import changes_since, look_for_changes
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import LogError
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
def test_a_slot_that_is_not_the_log_s_is_for_capture_to_name(rig: Rig) -> None:
    """The slot's name was left out, say: nothing is missing, and nothing is to be started anew."""
    forgotten = rig.having(slot="another")
    assert look_for_changes(forgotten.config, rig.source, rig.target).reason is not None
    with pytest.raises(LogError, match="slot"):
        forgotten.capture("forgotten")


@gated
def test_a_slot_that_is_being_read_is_for_capture_to_wait_for(rig: Rig) -> None:
    """By another pipeline of this log, for as long as its backlog takes."""
    with closing(psycopg.connect(rig.source_dsn, replication="database", autocommit=True)) as reading:
        options = "proto_version '1', publication_names 'parallel_apply_p'"
        reading.pgconn.send_query(f"START_REPLICATION SLOT parallel_apply_p LOGICAL 0/0 ({options})".encode())
        assert reading.pgconn.get_result() is not None
        assert look_for_changes(rig.config, rig.source, rig.target).reason == "another capture reads the source"


@gated
def test_a_capture_of_somebody_else_is_for_the_task_to_judge(rig: Rig) -> None:
    """Another pipeline of this log, say. It is told at once, also where the log is, or has a router that is away."""
    before = look_for_changes(rig.config, rig.source, rig.target)
    served = rig.having(log_url="grpc://127.0.0.1:1/log").config
    assert changes_since(served, rig.source, rig.target, before) is None
    rig.write("INSERT INTO t VALUES (2)")
    rig.capture("captured by hand")
    rig.capture("captured by hand")
    for config in (rig.config, rig.having(log_url="/no/such/directory").config, served):
        assert (
            changes_since(config, rig.source, rig.target, before)
            == "the source cannot be read from where the log stands"
        )
    found = look_for_changes(rig.config, rig.source, rig.target)
    assert found.reason == "captured transactions wait to be applied, from seqno 1"

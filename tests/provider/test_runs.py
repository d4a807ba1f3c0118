"""Whole runs of the DAG under `dag.test()`, with the pipeline level replaced: who is called with what, which colour."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_parallel_apply.operators import CaptureOperator, CoordinatorOperator
from airflow_parallel_apply.operators.stop import StopMarker, means_stop
from tests.provider.dag_runs import TASKS, Run, error_of, new_dag, run_of_dag, states  # noqa: F401  # fixtures
from tests.provider.fakes import FakePipeline
from tests.support.variants import gated

pytestmark = pytest.mark.usefixtures("airflow_home", "connections")


def test_a_run_goes_through_all_steps_and_is_green(run: Run, pipeline: FakePipeline) -> None:
    done = run(channels=8, tables={"include": ["shop.*"], "exclude": ["shop.tmp_*"]}, until="0/FF")
    assert done.state == "success"
    assert pipeline.calls == ["changes_available", "capture", "route", "open", "apply", "apply", "close"]
    config = pipeline.asked["open"]["config"]
    assert (config.pipeline, config.channels) == ("parallel_apply", 8)
    assert config.tables.include == ("shop.*",)
    assert config.tables.exclude == ("shop.tmp_*",)
    assert pipeline.asked["capture"]["until"] == "0/FF"
    assert pipeline.asked["capture"]["run_id"] == pipeline.asked["open"]["run_id"]
    assert pipeline.asked["open"]["owner"].endswith(f"parallel_apply/{done.run_id}")
    assert "dbname=shop" in pipeline.asked["capture"]["source"].url
    assert pipeline.asked["spark"]["spark"].url is None
    assert [report["lane"] for report in pipeline.asked["close"]["lane_reports"]] == [0, 1]


@gated
def test_the_lanes_share_a_spark_session_whose_id_no_xcom_tells(run: Run, pipeline: FakePipeline) -> None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    done = run()
    assert pipeline.session_id
    assert pipeline.asked["spark"]["session_id"] == pipeline.session_id
    with create_session() as session:
        rows = session.query(XComModel).filter_by(run_id=done.run_id).all()
        told = [str(row.value) for row in rows]
    assert len(told) > 5
    assert not any(pipeline.session_id in value for value in told)


@gated
def test_lanes_are_named_after_their_number(run: Run, pipeline: FakePipeline) -> None:
    pipeline.lanes = 3
    done = run()
    names = sorted(ti.rendered_map_index for ti in done.get_task_instances() if ti.task_id == "apply")
    assert names == ["lane 0 of 3", "lane 1 of 3", "lane 2 of 3"]


@gated
def test_open_seeds_the_stop_marker_before_lanes_read_it(run: Run, pipeline: FakePipeline) -> None:
    seen: list[bool] = []
    pipeline.during_apply = lambda signals: seen.append(signals.stop_requested())
    assert run().state == "success"
    assert seen == [False, False]


@gated
def test_a_stop_written_into_opens_xcom_reaches_the_lanes(run: Run, pipeline: FakePipeline) -> None:
    from airflow.sdk.bases.xcom import BaseXCom

    seen: list[bool] = []

    def lane(signals: Any) -> None:
        run_id = pipeline.asked["open"]["owner"].rpartition("/")[2]
        BaseXCom.set("stop_marker", {"stop": True}, dag_id="parallel_apply", task_id="open", run_id=run_id)
        seen.append(signals.stop_requested())

    pipeline.during_apply = lane
    assert run().state == "success"
    assert seen == [True, True]


@gated
def test_nothing_to_do_skips_the_run_and_is_green(run: Run, pipeline: FakePipeline, dag: DAG, monkeypatch) -> None:
    monkeypatch.setattr(dag.get_task("changes_available"), "wait", timedelta(0))
    pipeline.changes = None
    done = run()
    assert done.state == "success"
    assert set(states(done).values()) == {"skipped"}
    assert pipeline.calls == ["changes_available"]


@gated
def test_changes_that_come_while_the_sensor_waits_are_taken(run: Run, pipeline: FakePipeline) -> None:
    pipeline.later_changes = "changes were committed at the source"
    pipeline.changes = None
    done = run()
    assert done.state == "success"
    assert pipeline.calls[:4] == ["changes_available", "changes_since", "changes_available", "capture"]


@gated
def test_an_opened_run_without_work_has_no_lanes_and_is_green(run: Run, pipeline: FakePipeline) -> None:
    pipeline.nothing_to_do = True
    done = run()
    assert done.state == "success"
    assert states(done) == {**dict.fromkeys(TASKS, "success"), "apply": "skipped"}
    assert pipeline.asked["close"]["opened"].nothing_to_do


def test_open_goes_by_the_end_that_the_capture_of_its_pipeline_has_frozen() -> None:
    """By any name; with `until` given to the capture alone, another end would be too far."""
    with DAG("plain", schedule=None) as plain:
        other = CaptureOperator(task_id="a", pipeline="other")
        mine = CaptureOperator(task_id="take", pipeline="shop")
        other >> mine >> CoordinatorOperator(task_id="begin", action="open", pipeline="shop")

    class Kept:
        def xcom_pull(self, *, task_ids: str, key: str, **_: Any) -> str:
            return f"{task_ids} {key}"

    assert plain.get_task("begin")._captured_as({"ti": Kept()}) == "take run"
    assert (
        CoordinatorOperator(task_id="alone", action="open", pipeline="shop", dag=plain)._captured_as({"ti": Kept()})
        is None
    )


@gated
def test_the_queue_that_was_named_is_every_step_s_and_its_token_nobody_s(run: Run, pipeline: FakePipeline, monkeypatch):
    token = "a-token-of-ours"
    monkeypatch.setenv("AIRFLOW_CONN_OUR_QUEUE", f"parallel-apply-queue://:{token}@queue.invalid:7411/?protocol=grpcs")
    done = run(queue="our_queue")
    assert done.state == "success"
    for step in ("capture", "open", "apply", "close"):
        queue = pipeline.asked[step]["queue"]
        assert (queue.place, queue.dsn) == ("grpcs://queue.invalid:7411", f"grpcs://:{token}@queue.invalid:7411")
        assert token not in repr(queue)


@gated
def test_without_one_it_is_in_the_target(run: Run, pipeline: FakePipeline) -> None:
    assert run().state == "success"
    assert {pipeline.asked[step]["queue"] for step in ("capture", "open", "apply", "close")} == {None}


@gated
def test_a_queue_of_the_wrong_type_is_refused_by_the_first_task(run: Run, pipeline: FakePipeline, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_OUR_QUEUE", "http://queue.invalid")
    assert states(run(queue="our_queue"))["changes_available"] == "failed"
    assert pipeline.calls == []


@gated
def test_a_connection_of_the_wrong_type_is_refused_by_the_first_task(run: Run, pipeline: FakePipeline, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", "spark://local%5B2%5D")
    done = run(spark_conn_id="spark_cluster")
    assert done.state == "failed"
    assert pipeline.calls == []
    assert "spark_cluster" in error_of(done)
    assert "spark_connect" in error_of(done)


@gated
def test_a_lane_that_is_told_to_end_cancels_spark_and_fails(run: Run, pipeline: FakePipeline) -> None:
    pipeline.lanes = 1
    cancelled: list[bool] = []

    def terminated(signals: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        cancelled.append(signals.cancelled())

    pipeline.during_apply = terminated
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert cancelled == [True]
    assert pipeline.stage.cancelled
    assert states(done)["apply[0]"] == "failed"


def test_the_stop_marker_is_read_at_most_once_a_second() -> None:
    now = [100.0]
    reads: list[float] = []
    marker = StopMarker(lambda: reads.append(now[0]), clock=lambda: now[0])
    for now[0] in (100.0, 100.4, 100.9, 101.1, 101.5, 102.2):
        assert not marker.requested()
    assert reads == [100.0, 101.1, 102.2]


@pytest.mark.parametrize("value", [True, "true", " Stop ", {"stop": True}, {"stop": "yes"}])
def test_what_people_write_for_a_stop_is_one(value: object) -> None:
    assert means_stop(value)


@pytest.mark.parametrize("value", [None, False, "false", "", {}, {"stop": False}])
def test_anything_else_is_no_stop(value: object) -> None:
    assert not means_stop(value)


@gated
def test_a_wrong_parameter_is_refused_with_its_name(run: Run, pipeline: FakePipeline) -> None:
    done = run(tables=["nodot"])
    assert done.state == "failed"
    assert error_of(done).startswith("changes_available failed: parameter tables: 'nodot' is not usable")


def test_a_worker_without_java_is_refused_before_anything_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_parallel_apply.operators.spark import begin
    from airflow_parallel_apply.pipeline.errors import ConfigurationError
    from airflow_parallel_apply.spark.endpoint import EMBEDDED_SPARK

    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match="Install Java 17"):
        begin(EMBEDDED_SPARK)

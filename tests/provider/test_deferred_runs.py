"""Runs that wait deferred, for the lease that another run has or for the copy that it makes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_parallel_apply.pipeline.errors import LeaseBusy, TargetError
from tests.provider.dag_runs import Run, error_of, new_dag, run_of_dag, states  # noqa: F401  # fixtures
from tests.provider.fakes import FakePipeline
from tests.support.variants import gated

pytestmark = pytest.mark.usefixtures("airflow_home", "connections")


@gated
def test_open_waits_deferred_while_another_run_owns_the_pipeline(run: Run, pipeline: FakePipeline) -> None:
    pipeline.fail["open"] = [LeaseBusy("owned by another run")]
    done = run()
    assert done.state == "success"
    assert pipeline.calls[3:6] == ["open", "lease_view", "open"]


@gated
def test_a_triggerer_that_cannot_look_leaves_the_last_word_to_the_task(run: Run, pipeline: FakePipeline) -> None:
    pipeline.fail["open"] = [LeaseBusy("owned by another run")]
    pipeline.fail["lease_view"] = [TargetError("no route from the triggerer")]
    done = run()
    assert done.state == "success"
    pipeline.calls.clear()
    pipeline.fail["open"] = [LeaseBusy("owned by another run"), LeaseBusy("owned by another run")]
    pipeline.fail["lease_view"] = [TargetError("no route from the triggerer")]
    done = run()
    assert done.state == "failed"
    assert "no route from the triggerer" in error_of(done)


@gated
def test_a_first_run_waits_deferred_while_another_one_copies(run: Run, pipeline: FakePipeline) -> None:
    pipeline.fail["capture"] = [LeaseBusy("another run of pipeline p is copying", generation=0)]
    done = run()
    assert done.state == "success"
    assert pipeline.calls[1:4] == ["capture", "lease_view", "capture"]


def test_a_deferral_holds_only_what_the_supervisors_wire_knows(pipeline: FakePipeline, dag: DAG, monkeypatch) -> None:
    from airflow.sdk.execution_time.comms import DeferTask, _RequestFrame

    monkeypatch.setattr("airflow_parallel_apply.operators.lease.run_owner", lambda context: "o")
    with pytest.raises(TaskDeferred) as raised:
        dag.get_task("open")._wait({}, LeaseBusy("owned by another run"), None)
    path, arguments = raised.value.trigger.serialize()
    message = DeferTask(
        classpath=path,
        trigger_kwargs=arguments,
        trigger_timeout=raised.value.timeout,
        next_method=raised.value.method_name,
        next_kwargs={},
    )
    assert _RequestFrame(id=1, body=message.model_dump()).as_bytes()


@gated
def test_waiting_for_the_lease_is_bounded(run: Run, pipeline: FakePipeline, dag: DAG, monkeypatch) -> None:
    monkeypatch.setattr(dag.get_task("open"), "lease_timeout", timedelta(0))
    pipeline.fail["open"] = [LeaseBusy("owned by another run")]
    pipeline.owner = "somebody else"
    done = run()
    assert done.state == "failed"
    assert "somebody else" in error_of(done)

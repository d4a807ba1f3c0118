"""How `close` judges runs that failed, that somebody ended, or that were skipped, as `dag.test()` plays them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from airflow.providers.standard.operators.python import BranchPythonOperator, PythonOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException

from airflow_parallel_apply.pipeline.errors import FatalError, TargetError
from airflow_parallel_apply.task_group import ParallelApply
from tests.provider.dag_runs import TASKS, Run, error_of, new_dag, run_of_dag, states  # noqa: F401  # fixtures
from tests.provider.fakes import FakePipeline
from tests.support.variants import GATED, gated

pytestmark = pytest.mark.usefixtures("airflow_home", "connections")


@gated
def test_a_failed_lane_that_others_covered_leaves_the_run_green(run: Run, pipeline: FakePipeline) -> None:
    pipeline.fail["apply"] = [TargetError("a lane lost its disk")]
    done = run()
    # Which of them met the error is chance: lanes run in no order.
    lanes = [state for task, state in states(done).items() if task.startswith("apply[")]
    assert sorted(lanes) == ["failed", "success"]
    assert states(done)["close"] == "success"
    assert done.state == "success"


@gated
def test_a_failed_lane_that_nobody_covered_makes_the_run_red(run: Run, pipeline: FakePipeline) -> None:
    pipeline.fail["close"] = [TargetError("the lanes ended before every channel was stopped")]
    done = run()
    assert states(done)["close"] == "failed"
    assert done.state == "failed"


@gated
@pytest.mark.parametrize("step", [pytest.param("capture", marks=GATED), pytest.param("route", marks=GATED), "open"])
def test_an_error_before_the_lanes_makes_close_red_and_is_named(run: Run, pipeline: FakePipeline, step: str) -> None:
    pipeline.fail[step] = [TargetError("table public.accounts is missing", hint="Create it.")]
    done = run()
    assert done.state == "failed"
    assert states(done)["close"] == "failed"
    assert states(done)[step] == "failed"
    assert "close" not in pipeline.calls
    text = "table public.accounts is missing [pipeline parallel_apply] Hint: Create it."
    assert error_of(done) == f"{step} failed: {text}"


def test_a_close_whose_open_was_cleared_with_it_says_what_to_clear(dag: DAG) -> None:
    """Cleared without the lanes between them, both run at once."""

    class Asked:
        dag_id = run_id = "cleared"

        def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
            return {self.run_id: {"open": "running"}}

    close = dag.get_task("close")
    with pytest.raises(FatalError, match="its state is running Hint: Clear open with everything downstream"):
        close._judge_upstream({"ti": Asked()})


def test_a_close_behind_a_mapped_task_that_failed_names_that(airflow_home: Any) -> None:
    """Airflow tells its instances by names of their own. To clear `open` would lead nowhere."""

    class Asked:
        dag_id = run_id = "mapped"

        def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
            return {self.run_id: {"orders.open": "upstream_failed", "load_0": "success", "load_1": "failed"}}

        def xcom_pull(self, **_: Any) -> None:
            return None

    with DAG("mapped", schedule=None) as mapped:
        PythonOperator.partial(task_id="load", python_callable=print).expand(op_args=[[1], [2]]) >> ParallelApply(
            "orders"
        )
    with pytest.raises(FatalError, match=r"^load failed: .* then clear load with everything downstream"):
        mapped.get_task("orders.close")._judge_upstream({"ti": Asked()})


class Cleared:
    """A run whose `close` is cleared alone: the tasks in `skipped` were skipped, others than those in `succeeded`
    failed.
    """

    dag_id = run_id = "cleared"

    def __init__(self, skipped: list[str], said: str | None = None, succeeded: Sequence[str] = ()) -> None:
        self.states = {**dict.fromkeys(skipped, "skipped"), **dict.fromkeys(succeeded, "success")}
        self.said = said

    def get_task_states(self, *, task_ids: list[str], **_: Any) -> dict[str, dict[str, str]]:
        return {self.run_id: {name: self.states.get(name, "failed") for name in task_ids}}

    def xcom_pull(self, *, task_ids: str, key: str, **_: Any) -> str | None:
        return self.said if task_ids.endswith("changes_available") and key == "skipped" else None


@pytest.mark.parametrize("skipped", [TASKS[1:5], TASKS[2:5], TASKS[:5]])
def test_a_close_that_is_cleared_alone_in_a_run_that_was_ended_from_outside_is_red(
    dag: DAG, skipped: list[str]
) -> None:
    """Marked as failed while the sensor, or capture, was at work, or before anything was."""
    with pytest.raises(FatalError, match=r"ended before open began, and nothing was applied.*Hint: Clear the whole"):
        dag.get_task("close")._judge_upstream({"ti": Cleared(skipped)})


def test_a_sensor_that_was_skipped_since_it_failed_is_named_with_its_error(dag: DAG) -> None:
    """With soft_fail, once it has been deferred."""

    class Failed(Cleared):
        def xcom_pull(self, *, task_ids: str, key: str, **_: Any) -> str | None:
            return "no route to the target" if (task_ids, key) == ("changes_available", "error") else None

    with pytest.raises(FatalError, match=r"^changes_available failed: no route to the target.*Hint: Clear the whole"):
        dag.get_task("close")._judge_upstream({"ti": Failed(TASKS[:5])})


def test_so_it_is_where_the_run_was_ended_while_a_task_before_the_pipeline_was_at_work() -> None:
    with DAG("loaded", schedule=None) as loaded:
        PythonOperator(task_id="load", python_callable=print) >> ParallelApply("orders")
    ended = Cleared([f"orders.{name}" for name in TASKS])
    with pytest.raises(FatalError, match=r"ended before orders\.open began, and nothing was applied"):
        loaded.get_task("orders.close")._judge_upstream({"ti": ended})


def test_a_close_behind_a_skip_that_was_meant_is_skipped_with_its_reason(dag: DAG) -> None:
    idle = Cleared(TASKS[:5], said="no changes at the source")
    with pytest.raises(AirflowSkipException, match="was skipped: no changes at the source"):
        dag.get_task("close")._judge_upstream({"ti": idle, "params": dict.fromkeys(dag.params, "")})
    with DAG("branched", schedule=None) as branched:
        BranchPythonOperator(task_id="choose", python_callable=lambda: "other") >> ParallelApply("orders")
    close = branched.get_task("orders.close")
    left_out = Cleared([f"orders.{name}" for name in TASKS], succeeded=["choose"])
    with pytest.raises(AirflowSkipException, match=r"was skipped: orders\.changes_available was"):
        close._judge_upstream({"ti": left_out})


@pytest.mark.parametrize("is_first", [True, False])
def test_a_pipeline_that_is_skipped_with_the_idle_one_before_it_is_red_where_it_has_something_to_do(
    pipeline: FakePipeline, is_first: bool
) -> None:
    """Airflow skips what stands behind a skipped task: with `first >> second` nobody would look at the second."""
    with DAG("chained", schedule=None) as chained:
        second = ParallelApply("first") >> ParallelApply("second")
        if not is_first:
            PythonOperator(task_id="begin", python_callable=print) >> chained.get_task("first.changes_available")
    skipped = [f"{group}.{name}" for group in ("first", "second") for name in TASKS]
    context: Any = {"ti": Cleared(skipped, said="no changes at the source")}
    close = second.children["second.close"]
    hint = r"first\.changes_available skipped .* Hint: .*'trigger_rule': 'none_failed'"
    with pytest.raises(FatalError, match=f"nothing was applied, though changes were committed.*{hint}"):
        close._judge_upstream(context)
    assert pipeline.asked["changes_available"]["config"].pipeline == "second"
    pipeline.changes = None
    for name in ("first", "second"):
        with pytest.raises(AirflowSkipException, match="was skipped: no changes at the source"):
            chained.get_task(f"{name}.close")._judge_upstream(context)

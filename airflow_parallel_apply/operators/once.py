"""One run of a DAG applies a pipeline once.

A run's bound is frozen when it first opens, and the run owns the pipeline: a second `open` of the same pipeline in the
same run would find everything applied and end green with nothing done, or take the lease from the first one's lanes.

| the pipeline's name is | refused |
|---|---|
| a literal in both | when the DAG is parsed |
| a template | when the second `open` runs, and the first has not failed or been skipped |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context, TaskInstanceState

from airflow_parallel_apply.hooks.parameters import is_rendered_later
from airflow_parallel_apply.pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_parallel_apply.operators.coordinator import CoordinatorOperator
    from airflow_parallel_apply.task import PipelineTask

_HINT: Final = (
    "A run of a DAG applies a pipeline once: remove one of them, give it another pipeline name or target, or apply "
    "what came since in a run of its own (TriggerDagRunOperator)."
)

_APPLIES: Final = frozenset(
    {
        TaskInstanceState.SUCCESS,
        TaskInstanceState.RUNNING,
        TaskInstanceState.DEFERRED,
        TaskInstanceState.UP_FOR_RETRY,
        TaskInstanceState.UP_FOR_RESCHEDULE,
        TaskInstanceState.RESTARTING,
    }
)


def require_alone_in_dag(task: CoordinatorOperator) -> None:
    """Raise `ConfigurationError` while the DAG is parsed if another task opens the same pipeline, by literal names."""
    place = task.pipeline, task.target_conn_id
    if any(map(is_rendered_later, place)):
        return
    for other in _others(task):
        if (other.pipeline, other.target_conn_id) == place:
            raise _refusal(task, other, task.pipeline)


def require_alone(task: CoordinatorOperator, context: Context) -> None:
    """Raise `ConfigurationError` if another task of this run has opened the same pipeline, or is about to."""
    ti: Any = context["ti"]
    for other in _others(task):
        if not is_same_pipeline(task, other, context):
            continue
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=[other.task_id], run_ids=[ti.run_id])
        if found.get(ti.run_id, {}).get(other.task_id) in _APPLIES:
            raise _refusal(task, other, task.pipeline)


def is_same_pipeline(task: PipelineTask, other: PipelineTask, context: Context) -> bool:
    """True if two tasks of a DAG are of one pipeline and target, once what is a template is rendered."""

    def place(one: PipelineTask) -> list[Any]:
        return [task.render_template(value, context) for value in (one.pipeline, one.target_conn_id)]

    return place(task) == place(other)


def _others(task: CoordinatorOperator) -> Iterator[CoordinatorOperator]:
    """The other tasks of its DAG that open a pipeline."""
    for other in task.dag.tasks:
        if isinstance(other, type(task)) and other.task_id != task.task_id and other.action == task.action:
            yield other


def _refusal(task: CoordinatorOperator, other: CoordinatorOperator, pipeline: str) -> ConfigurationError:
    return ConfigurationError(
        f"{other.task_id} and {task.task_id} apply the same pipeline in one DAG", pipeline=pipeline, hint=_HINT
    )

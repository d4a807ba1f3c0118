"""Tells why a task was skipped: since a sensor found nothing to do, since somebody's branch left the pipeline out, or
since the run was ended from outside.

If a run is marked as failed, or `dagrun_timeout` ends it, Airflow skips the tasks that have not begun. In such a run
nothing was found to be done. A skip passes on along a DAG, so it is judged where it began:

| it began with | the run |
|---|---|
| a sensor that said why | had nothing to do, if it is this pipeline's |
| a task that is not a pipeline's, or one behind such a task that succeeded: a branch | was to leave the pipeline out |
| any other task of a pipeline: none of them skips itself | was ended |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow.sdk import DAG, Context, TaskInstanceState

from airflow_parallel_apply.task import SKIPPED_KEY, PipelineTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Where a skip that is no fault began, and why. `sensor`: the pipeline's that said so; None for a task of somebody
    else's.
    """

    task_id: str
    reason: str
    sensor: PipelineTask | None = None


def skip_of(dag: DAG, task_id: str, context: Context) -> Skip | None:
    """A task's skip; None if the run was ended from outside."""
    ti: Any = context["ti"]
    tasks = [task_id, *sorted(dag.get_task(task_id).get_flat_relative_ids(upstream=True))]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id]).get(ti.run_id, {})
    skipped = {one for one in tasks if states.get(one) == TaskInstanceState.SKIPPED}
    # Of a mapped task each instance is told by a name of its own, with its index behind the task's.
    succeeded = {
        name if name in tasks else name.rpartition("_")[0]
        for name, state in states.items()
        if state == TaskInstanceState.SUCCESS
    }
    for first in tasks:
        upstream = dag.get_task(first).upstream_task_ids
        if first not in skipped or upstream & skipped:
            continue
        task: Any = dag.get_task(first)
        if isinstance(task, PipelineTask):
            said = ti.xcom_pull(task_ids=first, key=SKIPPED_KEY, map_indexes=-1)
            if said is not None:
                return Skip(task_id=first, reason=str(said), sensor=task)
        if not all(_is_a_pipeline_s(dag, one) for one in (first, *(upstream & succeeded))):
            return Skip(task_id=first, reason=f"{first} was skipped")
    return None


def _is_a_pipeline_s(dag: DAG, task_id: str) -> bool:
    task: Any = dag.get_task(task_id)
    return issubclass(task.operator_class if task.is_mapped else type(task), PipelineTask)

"""Whole runs of a DAG under `dag.test()`, and what they leave: the states of their tasks, and the error of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from tests.provider.conftest import REPOSITORY

Run = Callable[..., Any]
TASKS = ["changes_available", "capture", "route", "open", "apply", "close"]


@pytest.fixture(name="dag")
def new_dag() -> DAG:
    """A new one for each test: a run leaves its parameters in the DAG's form."""
    return load_dag("parallel_apply")


@pytest.fixture(name="run")
def run_of_dag(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run it once; returns the DAG run."""
    without_retries(dag, monkeypatch)

    def once(**conf: Any) -> Any:
        return dag.test(run_conf=conf)

    return once


def load_dag(name: str) -> DAG:
    """The DAG of a file of the same name."""
    bag = DagBag(str(REPOSITORY / "dags" / f"{name}.py"))
    assert not bag.import_errors
    dag: DAG = bag.dags[name]
    return dag


def without_retries(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their delay is real time."""
    for task in dag.tasks:
        if task.is_mapped:
            monkeypatch.setitem(task.partial_kwargs, "retries", 0)
        else:
            monkeypatch.setattr(task, "retries", 0)


def states(dag_run: Any) -> dict[str, str]:
    """By task, and by instance of a mapped one."""
    return {
        ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]": str(ti.state)
        for ti in dag_run.get_task_instances()
    }


def error_of(done: Any, task_id: str = "close") -> str:
    """As the task left it for whoever reads XComs; the log has the same line."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        row = session.query(XComModel).filter_by(run_id=done.run_id, task_id=task_id, key="error").one()
        return str(XComModel.deserialize_value(row))

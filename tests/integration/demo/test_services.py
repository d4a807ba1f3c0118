"""Airflow as the demo runs it: it comes up, runs a DAG, and leaves no process, whatever was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.demo import processes
from airflow_parallel_apply.demo.airflow import AirflowOptions, AirflowServices
from airflow_parallel_apply.demo.processes import Tree
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from tests.support.variants import gated

MINUTE = timedelta(minutes=1)

DAG = """
import os, time
from pathlib import Path
from airflow.sdk import dag, task

@dag(schedule=None)
def waits():
    @task
    def first(**context):
        return context["params"].get("number", 0) + 1

    @task
    def until_told(number, **context):
        folder = Path(context["dag_run"].conf["folder"])
        (folder / "begun").write_text(str(os.getpid()))
        while not (folder / "go").exists():
            time.sleep(0.05)
        return number + 1

    until_told(first())

waits()
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowServices]:
    root = tmp_path_factory.mktemp("airflow")
    (root / "dags").mkdir()
    (root / "dags" / "waits.py").write_text(DAG)
    with AirflowServices(AirflowOptions(home=root / "home", dags=root / "dags", parallelism=2)) as running:
        running.wait_for_dag("waits")
        yield running


@pytest.mark.long
def test_a_run_goes_through_and_its_results_can_be_read(services: AirflowServices, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = services.client.trigger("waits", {"folder": str(tmp_path)})
    assert services.client.wait_for_run("waits", run, timeout=MINUTE) == "success"
    tasks = services.client.task_instances("waits", run)
    assert [(task.task_id, task.state) for task in tasks] == [("first", "success"), ("until_told", "success")]
    assert all(task.duration is not None for task in tasks)
    assert services.client.xcom("waits", run, "until_told", "return_value") == 2
    assert services.client.xcom("waits", run, "until_told", "nothing") is None
    assert "Done" in services.client.task_log("waits", run, tasks[0]) or services.client.task_log(
        "waits", run, tasks[0]
    )


@pytest.mark.long
def test_a_xcom_can_be_changed_and_a_run_cleared(services: AirflowServices, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = services.client.trigger("waits", {"folder": str(tmp_path)})
    services.client.wait_for_run("waits", run, timeout=MINUTE)
    services.client.set_xcom("waits", run, "first", "return_value", 41)
    assert services.client.xcom("waits", run, "first", "return_value") == 41
    services.client.clear("waits", run)
    assert services.client.wait_for_run("waits", run, timeout=MINUTE) == "success"
    assert services.client.xcom("waits", run, "until_told", "return_value") == 2


@pytest.mark.long
def test_an_unknown_dag_is_an_error_that_names_it(services: AirflowServices) -> None:
    with pytest.raises(ConfigurationError, match="dags/nothing"):
        services.client.trigger("nothing", {})


@pytest.mark.long
def test_a_scheduler_that_was_killed_and_restarted_finishes_the_run(services: AirflowServices, tmp_path: Path) -> None:
    run = services.client.trigger("waits", {"folder": str(tmp_path)})
    _until((tmp_path / "begun").exists)
    services.kill("scheduler")
    services.restart("scheduler")
    (tmp_path / "go").touch()
    assert services.client.wait_for_run("waits", run, timeout=MINUTE) == "success"


@pytest.mark.long
def test_no_process_is_left_after_kill_9_of_the_scheduler(services: AirflowServices, tmp_path: Path) -> None:
    services.client.trigger("waits", {"folder": str(tmp_path)})
    _until((tmp_path / "begun").exists)
    orphan = int((tmp_path / "begun").read_text())
    services.kill("scheduler")
    everything = [process.pid for process in services.processes()]
    assert orphan in everything
    services.stop()
    assert services.processes() == ()
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in everything))  # init reaps the orphans


def test_a_tree_is_ended_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = f"""
import os, sys, time
from pathlib import Path
from airflow_parallel_apply.demo.processes import Tree
tree = Tree("{tmp_path.name}-owner")
script = "import os, time; os.fork() or os.setsid(); time.sleep(600)"
log = Path({str(tmp_path / "log")!r})
tree.launch([sys.executable, "-c", script], environment=os.environ, log=log, directory=log.parent)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", owner])
    tree = Tree(f"{tmp_path.name}-owner")
    try:
        _until(lambda: len(tree.processes()) == 2)
    finally:
        process.kill()
        process.wait()
    _until(lambda: tree.processes() == ())


def test_a_process_that_ignores_sigterm_is_killed_when_patience_is_over(tmp_path: Path) -> None:
    tree = Tree()
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    log = tmp_path / "log"
    tree.launch([sys.executable, "-c", script], environment=dict(os.environ), log=log, directory=tmp_path)
    _until(lambda: log.read_text() != "")
    tree.end(patience=timedelta(seconds=0.2))
    assert tree.processes() == ()


def test_what_outlives_a_kill_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = tree.launch(command, environment=dict(os.environ), log=tmp_path / "log", directory=tmp_path)
    with monkeypatch.context() as undead:
        undead.setattr(processes, "_kill", lambda pid: None)
        undead.setattr(processes, "_KILL_SECONDS", 0.1)
        with pytest.raises(Unavailable, match=rf"pid {child.pid} \(.*time\.sleep"):
            tree.end()
    tree.end()
    assert tree.processes() == ()


@gated
def test_a_service_that_cannot_start_is_reported_with_its_own_words(tmp_path: Path) -> None:
    settings = {"database": {"sql_alchemy_conn": "nonsense://"}}
    services = AirflowServices(AirflowOptions(home=tmp_path / "home", dags=tmp_path, settings=settings))
    with pytest.raises(Unavailable, match="nonsense"):
        services.__enter__()
    assert services.processes() == ()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not come true within three minutes")
        time.sleep(0.02)

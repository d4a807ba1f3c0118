"""Tasks run where Airflow's core is not installed: of Airflow they import no more than its task SDK does."""

from __future__ import annotations

import subprocess
import sys

from tests.provider.conftest import REPOSITORY
from tests.support.variants import gated

# What the SDK itself imports of the core, for a DAG, is there; from then on nothing more of it can be imported.
SCRIPT = """
import importlib, importlib.abc, pkgutil, runpy, sys

from airflow.sdk import Asset, BaseHook, BaseOperatorLink, BaseSensorOperator, Context, PokeReturnValue, TriggerRule
from airflow.sdk import BaseHook, BaseOperator, Connection, DAG, Param, TaskGroup
with DAG("warm", schedule=None):
    TaskGroup("group")
of_core = ("models", "triggers", "serialization", "jobs", "executors", "api_fastapi", "secrets", "ti_deps")
for name in [name for name in sys.modules if name.startswith(tuple(f"airflow.{part}" for part in of_core))]:
    del sys.modules[name]

class NoCore(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top, _, rest = name.partition(".")
        if top == "airflow" and rest and rest.partition(".")[0] not in ("sdk", "providers"):
            raise ModuleNotFoundError(f"no Airflow core here: {name}", name=name)

sys.meta_path.insert(0, NoCore())

import airflow_parallel_apply
skipped = ("airflow_parallel_apply.demo", "airflow_parallel_apply.triggers")
for module in pkgutil.walk_packages(airflow_parallel_apply.__path__, "airflow_parallel_apply."):
    if not module.name.startswith(skipped) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
runpy.run_path(sys.argv[1])

from datetime import timedelta
from airflow.sdk.exceptions import AirflowNotFoundException, TaskDeferred
from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.operators.lease import LeaseTask
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LeaseBusy
from airflow_parallel_apply.sensors import ChangesAvailableSensor, QueueEmptySensor
from airflow_parallel_apply.pipeline.admin.watch import Look

def asked(conn_id):
    if conn_id == "shop":
        return Connection(conn_id="shop", conn_type="postgres", host="localhost", login="somebody", schema="shop")
    raise AirflowNotFoundException(f"{conn_id} isn't defined")

# As the supervisor of a task answers.
BaseHook.get_connection = asked
assert connections.database("shop", parameter="source_conn_id").place == "localhost:5432/shop"
try:
    connections.database("nowhere", parameter="source_conn_id")
except ConfigurationError as error:
    print("refused:", error)

import pendulum
soon = pendulum.now("UTC").add(minutes=1)
deferrals = [
    lambda: ChangesAvailableSensor(task_id="a", pipeline="p")._wait(Look(), soon),
    lambda: QueueEmptySensor(task_id="b", queues="q")._wait(),
]
for defer in deferrals:
    try:
        defer()
    except TaskDeferred as deferred:
        print("deferred:", deferred.trigger.serialize()[0])
"""


@gated
def test_tasks_are_parsed_find_connections_and_defer_without_airflows_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(REPOSITORY / "dags" / "parallel_apply.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused, *deferred = done.stdout.splitlines()[-3:]
    assert "connection 'nowhere' cannot be read" in refused
    assert deferred == [
        "deferred: airflow_parallel_apply.triggers.changes.ChangesTrigger",
        "deferred: airflow_parallel_apply.triggers.queue.QueueEmptyTrigger",
    ]

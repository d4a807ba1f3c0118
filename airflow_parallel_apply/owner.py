"""Names a pipeline's owner as Airflow does (deployment, DAG and run), and tells whether that run will go on.

A lease says whether an owner was at work lately. Between `open` and the first lane, between a lane's death and its
retry, and before `close` there may be nobody at work for as long as tasks wait for slots, and only Airflow knows that
the run goes on. So whoever finds a lease that is over asks Airflow, where the owner is a run of the same deployment.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from airflow.sdk import DagRunState, Variable
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSecretsBackendAccessDenied

from airflow_parallel_apply.hooks.lookup import is_absent
from airflow_parallel_apply.pipeline.errors import Unavailable

DEPLOYMENT_VARIABLE: Final = "parallel_apply_deployment"
"""Airflow variable with a deployment's name, where its base URL is none that others could not have, too."""

_LOCAL_HOSTS: Final = frozenset({None, "localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104  # compared only

_UNREADABLE: Final = f"the Airflow variable {DEPLOYMENT_VARIABLE}, which names this deployment, cannot be read or set"

_GOES_ON: Final = (DagRunState.QUEUED.value, DagRunState.RUNNING.value)


def owner_of(run: str) -> str:
    """The owner that a run (`dag_id/run_id`) is: the same for all its tasks, their retries and clears, and no other
    deployment's. Errors: `Unavailable` where the deployment can neither be told nor given a name.
    """
    return f"{_deployment()}/{run}"


def goes_on(owner: str) -> bool:
    """True if an owner is a run of this deployment that is not over; Airflow knows nothing of other deployments."""
    prefix = f"{_deployment()}/"
    dag_id, slash, run_id = owner.removeprefix(prefix).partition("/")
    if not owner.startswith(prefix) or not slash:
        return False
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    # Counted, since to ask for the state of a run that was deleted is an error.
    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=list(_GOES_ON)) > 0


def _deployment() -> str:
    url = (conf.get("api", "base_url", fallback=None) or "").rstrip("/")
    if urlsplit(url).hostname not in _LOCAL_HOSTS:
        return url
    return f"{url or 'airflow'}#{_name()}"


def _name() -> str:
    from airflow.sdk.execution_time.comms import GetVariable

    try:
        found = Variable.get(DEPLOYMENT_VARIABLE, default=None)
        if found is None and not is_absent(GetVariable(key=DEPLOYMENT_VARIABLE)):
            raise Unavailable(_UNREADABLE, hint="Airflow's API server does not tell it now. It is tried again.")
        if not found:
            Variable.set(
                DEPLOYMENT_VARIABLE, uuid4().hex, description="Names this deployment as owner of pipelines. Keep it."
            )
            # Of several tasks that set it at once the last one counts.
            found = Variable.get(DEPLOYMENT_VARIABLE)
    except (AirflowRuntimeError, AirflowSecretsBackendAccessDenied) as error:
        raise Unavailable(
            f"{_UNREADABLE}: {error}",
            hint="Set it to a name of this deployment's own, or give the deployment a base_url (section [api]).",
        ) from error
    return str(found)

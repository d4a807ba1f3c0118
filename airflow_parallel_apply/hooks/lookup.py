"""Connections by their ids, and whether Airflow lacks what was not found: a task's SDK says so of a connection or
variable that an API server which fails did not tell, too.
"""

from __future__ import annotations

import os
from typing import Any, Final, NoReturn, cast

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import (
    AirflowNotFoundException,
    AirflowRuntimeError,
    AirflowSecretsBackendAccessDenied,
    ErrorType,
)

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable

_ABSENT: Final = (ErrorType.CONNECTION_NOT_FOUND, ErrorType.VARIABLE_NOT_FOUND)


def stored_connection(conn_id: str, parameter: str) -> Connection:
    """Errors: `ConfigurationError`, which names the parameter; `Unavailable` while Airflow's API server fails."""
    if not conn_id:
        raise ConfigurationError(f"{parameter} is empty", hint="Name a connection.")
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowSecretsBackendAccessDenied as error:
        # Also told of a task's token that has ended, which a retry does not have.
        raise Unavailable(
            f"{parameter}: connection {conn_id!r} cannot be read: {error}",
            hint="If that stays so, give it to the team of this DAG.",
        ) from error
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        return _stored(conn_id) or _missing(conn_id, parameter, error)


def is_absent(request: Any) -> bool:
    """Ask for it once more, by the request that the SDK makes. Outside of Airflow's processes nothing can be asked."""
    try:
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS
    except ImportError:
        return True
    try:
        answer: Any = SUPERVISOR_COMMS.send(request)
    except AirflowRuntimeError as error:
        answer = error.error
    return getattr(answer, "error", None) in _ABSENT


def _stored(conn_id: str) -> Connection | None:
    """Read a connection from Airflow's database, for commands in a shell: outside of its processes the SDK looks at the
    environment only. In a task this asks the API once more.
    """
    try:
        from airflow.models.connection import Connection as StoredConnection
    except ImportError:
        # A worker without Airflow's core, where the SDK has asked the API.
        return None
    try:
        return cast("Connection", StoredConnection.get_connection_from_secrets(conn_id))
    except (AirflowNotFoundException, AirflowRuntimeError):
        return None


def _missing(conn_id: str, parameter: str, error: Exception) -> NoReturn:
    from airflow.sdk.execution_time.comms import GetConnection

    what = f"{parameter}: connection {conn_id!r} cannot be read"
    if not is_absent(GetConnection(conn_id=conn_id)):
        raise Unavailable(f"{what}: Airflow's API server does not tell it now", hint="It is tried again.") from error
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if variable in os.environ:
        # Airflow takes a variable that it cannot read for one that is not set.
        raise ConfigurationError(
            f"{what}: Airflow cannot read the environment variable {variable}",
            hint="Correct it: it takes a URI, or JSON with conn_type, host, login, password, schema, port and extra.",
        ) from error
    raise ConfigurationError(
        f"{what}: {str(error).splitlines()[0]}",
        hint=f"Create it (Admin, Connections), or set {variable} to a URI or to whole JSON.",
    ) from error

"""The part of Airflow's REST API (v2) that the demo and the tests use, typed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import pendulum

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable

FINISHED: Final = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstance:
    """One task of a run, as far as it is. `map_index` is -1 where the task is not mapped."""

    task_id: str
    map_index: int
    name: str
    state: str | None
    try_number: int
    start: pendulum.DateTime | None
    end: pendulum.DateTime | None

    @property
    def duration(self) -> timedelta | None:
        """The time from its (last) start to its end; None while it has not ended."""
        return None if self.start is None or self.end is None else self.end - self.start


class AirflowClient:
    """A logged-in client. Errors: `Unavailable` when the server does not answer, or answers that it cannot."""

    def __init__(self, base_url: str, *, username: str, password: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._login = {"username": username, "password": password}
        self._http = httpx.Client(base_url=self.base_url, timeout=30.0)

    def health(self) -> dict[str, Any]:
        """Status and last heartbeat by component; needs no login."""
        return self._answer("GET", "/api/v2/monitor/health", authorized=False)

    def wake_execution_api(self) -> None:
        """Make the server build the routes that tasks talk to."""
        self._answer("GET", "/execution/health", authorized=False)

    def has_dag(self, dag_id: str) -> bool:
        """True if the DAG was parsed and stored."""
        try:
            self._answer("GET", f"/api/v2/dags/{quote(dag_id)}")
        except _NotFound:
            return False
        return True

    def import_errors(self) -> dict[str, str]:
        """The traceback of every DAG file that does not load, by file name."""
        listed = self._answer("GET", "/api/v2/importErrors")["import_errors"]
        return {one["filename"]: one["stack_trace"] for one in listed}

    def trigger(self, dag_id: str, conf: Mapping[str, Any], *, run_id: str | None = None) -> str:
        """Start a run; its id."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)}
        run: str = self._answer("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", json=body)["dag_run_id"]
        return run

    def run_state(self, dag_id: str, run_id: str) -> str:
        """`queued`, `running`, `success` or `failed`."""
        state: str = self._answer("GET", _run_path(dag_id, run_id))["state"]
        return state

    def wait_for_run(
        self,
        dag_id: str,
        run_id: str,
        *,
        timeout: timedelta,
        every: timedelta = timedelta(seconds=0.5),
        on_poll: Callable[[], None] | None = None,
    ) -> str:
        """Wait until the run has ended; its final state. Errors: `Unavailable` when it is still going after `timeout`.

        A server that does not answer for a moment is asked again: it may have been killed on purpose.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        state = "unknown"
        while time.monotonic() < deadline:
            try:
                state = self.run_state(dag_id, run_id)
            except Unavailable:
                state = "unknown"
            if state in FINISHED:
                return state
            if on_poll is not None:
                on_poll()
            time.sleep(every.total_seconds())
        raise Unavailable(f"run {run_id} of DAG {dag_id} is {state} after {timeout}", op="airflow")

    def task_instances(self, dag_id: str, run_id: str) -> tuple[TaskInstance, ...]:
        """All tasks of a run in the order of their start; those that have not started come last."""
        listed = self._answer("GET", f"{_run_path(dag_id, run_id)}/taskInstances", params={"limit": 500})
        found = [
            TaskInstance(
                task_id=one["task_id"],
                map_index=one["map_index"],
                name=one.get("rendered_map_index") or one["task_id"],
                state=one["state"],
                try_number=one["try_number"],
                start=_when(one["start_date"]),
                end=_when(one["end_date"]),
            )
            for one in listed["task_instances"]
        ]
        return tuple(sorted(found, key=lambda one: (one.start is None, one.start or 0, one.task_id, one.map_index)))

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str, *, map_index: int = -1) -> Any:
        """A value as it was stored, or None where there is none."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        try:
            return self._answer("GET", path, params={"map_index": map_index, "deserialize": True})["value"]
        except _NotFound:
            return None

    def set_xcom(self, dag_id: str, run_id: str, task_id: str, key: str, value: Any) -> None:
        """Change a value that is there, as the UI's editor does."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        self._answer("PATCH", path, json={"value": value, "map_index": -1})

    def clear(self, dag_id: str, run_id: str, *, only_failed: bool = False) -> None:
        """Clear a run, so that its tasks run again."""
        body = {"dry_run": False, "only_failed": only_failed}
        self._answer("POST", f"{_run_path(dag_id, run_id)}/clear", json=body)

    def clear_tasks(self, dag_id: str, run_id: str, task_ids: Sequence[str], *, downstream: bool = False) -> None:
        """Clear some tasks of a run, with everything downstream of them if asked."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "include_downstream": downstream,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self._answer("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", json=body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, *, map_index: int = -1) -> None:
        """Mark a task as `failed` or `success`, as the UI's button does; one that runs is told to end."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/{map_index}"
        self._answer("PATCH", path, json={"new_state": state})

    def task_log(self, dag_id: str, run_id: str, task: TaskInstance) -> str:
        """The log of a task's last try, one line per event."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task.task_id)}/logs/{max(task.try_number, 1)}"
        content = self._answer("GET", path, params={"map_index": task.map_index})["content"]
        return "\n".join(_log_line(event) for event in content)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, method: str, path: str, *, authorized: bool = True, **arguments: Any) -> dict[str, Any]:
        if authorized and "Authorization" not in self._http.headers:
            self._log_in()
        try:
            response = self._http.request(method, path, **arguments)
            if response.status_code == httpx.codes.UNAUTHORIZED and authorized:
                self._log_in()
                response = self._http.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise Unavailable(f"Airflow at {self.base_url} does not answer: {error}", op="airflow") from error
        if response.status_code == httpx.codes.NOT_FOUND:
            raise _NotFound(f"Airflow has no {path}", op="airflow")
        if response.is_server_error:
            raise Unavailable(f"Airflow answered {response.status_code} to {method} {path}", op="airflow")
        if response.is_error:
            raise ConfigurationError(
                f"Airflow refused {method} {path} with {response.status_code}: {response.text[:500]}", op="airflow"
            )
        parsed: dict[str, Any] = response.json() if response.content else {}
        return parsed

    def _log_in(self) -> None:
        try:
            response = self._http.post("/auth/token", json=self._login)
        except httpx.TransportError as error:
            raise Unavailable(f"Airflow at {self.base_url} does not answer: {error}", op="airflow") from error
        if response.is_error:
            raise Unavailable(f"Airflow refused the login with {response.status_code}", op="airflow")
        self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"


class _NotFound(ConfigurationError):
    """The API knows nothing by this name."""


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _when(text: str | None) -> pendulum.DateTime | None:
    if text is None:
        return None
    parsed = pendulum.parse(text)
    return parsed if isinstance(parsed, pendulum.DateTime) else None


def _log_line(event: Any) -> str:
    if not isinstance(event, Mapping):
        return str(event)
    detail = "".join(f" {name}={value}" for name, value in event.items() if name not in {"event", "timestamp"})
    return f"{event.get('timestamp') or ''} {event.get('event')}{detail}".strip()

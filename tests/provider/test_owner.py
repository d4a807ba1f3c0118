"""An owner names its deployment and its run, and Airflow says whether that goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_parallel_apply import owner
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.task import run_identity
from tests.provider.fakes import KeptForTask

URL = "airflow_parallel_apply.owner.conf"


class Conf:
    def __init__(self, url: str | None) -> None:
        self.url = url

    def get(self, section: str, name: str, fallback: str | None = None) -> str | None:
        return self.url or fallback


class Variables:
    """Those of one deployment."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.kept.get(key, default)

    def set(self, key: str, value: str, description: str) -> None:
        self.kept[key] = value


@pytest.mark.parametrize("url", [None, "", "http://localhost:8080", "http://127.0.0.1:8080/airflow"])
def test_deployments_without_a_url_of_their_own_are_different_owners_and_stay_who_they_are(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, another = Variables(), Variables()
    monkeypatch.setattr(owner, "conf", Conf(url))

    def owner_at(deployment: Variables) -> str:
        monkeypatch.setattr(owner, "Variable", deployment)
        return owner.owner_of("dag/run")

    first = owner_at(one)
    assert owner_at(another) != first
    assert owner_at(one) == first
    assert first.endswith("/dag/run")


@pytest.mark.parametrize("how", ["answers", "raises"])
def test_a_deployment_whose_api_server_does_not_tell_its_name_now_is_not_given_another_one(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK says that there is none."""
    error = ErrorResponse(error=ErrorType.API_SERVER_ERROR)

    class Failing:
        def send(self, request: object) -> ErrorResponse:
            if how == "raises":
                raise AirflowRuntimeError(error)
            return error

    nothing = Variables()
    monkeypatch.setattr(owner, "conf", Conf(None))
    monkeypatch.setattr(owner, "Variable", nothing)
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", Failing(), raising=False)
    with pytest.raises(Unavailable, match="names this deployment, cannot be read"):
        owner.owner_of("dag/run")
    assert nothing.kept == {}


def test_a_deployment_with_a_url_of_its_own_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "conf", Conf("https://airflow.example.org/"))
    monkeypatch.setattr(owner, "Variable", None)
    assert owner.owner_of("dag/run") == "https://airflow.example.org/dag/run"


def test_a_run_under_the_id_of_a_deleted_one_is_another_run_unless_both_have_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "conf", Conf("https://airflow.example.org"))
    first = datetime(2026, 1, 1, tzinfo=UTC)

    def run_id(kept: KeptForTask, **interval: datetime) -> str:
        context: Any = {
            "ti": SimpleNamespace(dag_id="dag"),
            "run_id": "nightly",
            "task_state_store": kept,
            **interval,
        }
        found = run_identity(context)
        assert found.owner == "https://airflow.example.org/dag/nightly"
        return found.run_id

    deleted, again = KeptForTask(), KeptForTask()
    assert run_id(deleted) == run_id(deleted)
    assert run_id(deleted) != run_id(again)
    interval = {"data_interval_start": first, "data_interval_end": first + timedelta(days=1)}
    assert run_id(deleted, **interval) == run_id(again, **interval)


def test_only_runs_of_this_deployment_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def count(*, dag_id: str, run_ids: list[str], states: list[str]) -> int:
        asked.append((dag_id, run_ids, sorted(states)))
        return run_ids == ["manual/1"]

    monkeypatch.setattr(owner, "conf", Conf("https://airflow.example.org"))
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.RuntimeTaskInstance.get_dr_count", count)
    assert owner.goes_on("https://airflow.example.org/dag/manual/1")
    assert not owner.goes_on("https://airflow.example.org/dag/over")
    assert not owner.goes_on("https://other.example.org/dag/manual/1")
    assert not owner.goes_on("somebody")
    assert asked == [("dag", ["manual/1"], ["queued", "running"]), ("dag", ["over"], ["queued", "running"])]

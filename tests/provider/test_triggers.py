"""Triggers: what is stored while a task is deferred, and the one event that they end with."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.module_loading import import_string

from airflow_parallel_apply.pipeline.admin.watch import Look
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.sensors.changes import ChangesAvailableSensor
from airflow_parallel_apply.triggers import ChangesTrigger, LeaseTrigger
from tests.provider.fakes import FakePipeline

pytestmark = pytest.mark.usefixtures("connections")


@pytest.fixture(autouse=True)
def poll_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("changes", "lease"):
        monkeypatch.setattr(f"airflow_parallel_apply.triggers.{module}._POLL_SECONDS", 0.01)


PAST = "2000-01-01T00:00:00+00:00"


def later() -> str:
    return pendulum.now("UTC").add(minutes=1).isoformat()


def changes(deadline: str) -> ChangesTrigger:
    return ChangesTrigger(
        parameters={"pipeline": "orders", "log_url": "/log", "channels": "4"},
        source_conn_id="parallel_apply_source",
        target_conn_id="parallel_apply_target",
        deadline=deadline,
        generation=7,
        captured_offset=17,
    )


def lease(deadline: str) -> LeaseTrigger:
    return LeaseTrigger(pipeline="orders", target_conn_id="parallel_apply_target", owner="me", deadline=deadline)


def event(trigger: Any) -> dict[str, Any]:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(first())


@pytest.mark.parametrize("trigger", [changes(PAST), lease(PAST)], ids=["changes", "lease"])
def test_a_trigger_survives_being_stored(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    assert type(again) is type(trigger)
    assert again.serialize() == (path, arguments)


def test_paths_are_wire_format() -> None:
    assert changes(PAST).serialize()[0] == "airflow_parallel_apply.triggers.changes.ChangesTrigger"
    assert lease(PAST).serialize()[0] == "airflow_parallel_apply.triggers.lease.LeaseTrigger"


@pytest.mark.parametrize("trigger", [changes(PAST), lease(PAST)], ids=["changes", "lease"])
def test_nothing_secret_is_stored(trigger: Any) -> None:
    assert "secret" not in json.dumps(trigger.serialize())


def test_changes_are_found_with_their_reason(pipeline: FakePipeline) -> None:
    deadline = later()
    assert event(changes(deadline)) == {"status": "available", "reason": pipeline.changes, "deadline": deadline}
    assert pipeline.asked["changes_since"]["before"] == Look(generation=7, captured_offset=17)


def test_a_task_that_an_older_release_deferred_is_to_look_itself(pipeline: FakePipeline) -> None:
    path, arguments = changes(later()).serialize()
    older = {name: arguments[name] for name in ("parameters", "source_conn_id", "target_conn_id", "deadline")}
    assert event(import_string(path)(**older))["status"] == "available"
    assert pipeline.calls == []


def test_the_wait_for_changes_ends_at_the_deadline(pipeline: FakePipeline) -> None:
    pipeline.changes = None
    assert event(changes(PAST)) == {"status": "nothing"}


def test_a_lost_slot_is_not_waited_for(pipeline: FakePipeline) -> None:
    """And the task says whether that is so where tasks run."""
    pipeline.fail["changes_since"] = [SourceError("the slot is gone")]
    found = event(changes(later()))
    assert (found["status"], found["reason"]) == ("available", "the triggerer could not look: the slot is gone")
    # One look, and no further wait: the two would take turns.
    assert pendulum.parse(found["deadline"]) <= pendulum.now("UTC")


def test_a_restarting_database_is_waited_for(pipeline: FakePipeline) -> None:
    pipeline.fail["changes_since"] = [Unavailable("starting up")] * 3
    assert event(changes(later()))["reason"] == pipeline.changes
    assert pipeline.calls == ["changes_since"] * 4


def test_a_free_lease_ends_the_wait(pipeline: FakePipeline) -> None:
    assert event(lease(later()))["status"] == "free"


def test_our_own_lease_is_free_for_us(pipeline: FakePipeline) -> None:
    pipeline.owner = "me"
    assert event(lease(later()))["status"] == "free"


def test_a_lease_that_stays_busy_names_its_owner(pipeline: FakePipeline) -> None:
    pipeline.owner = "another run"
    assert event(lease(PAST)) == {"status": "busy", "owner": "another run", "deadline": PAST, "generation": None}


def test_an_owner_that_airflow_says_goes_on_is_not_asked_about_at_every_look(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is over, so the lease looks free; the task asks Airflow again after a while."""
    waiting = {**lease(PAST).serialize()[1], "generation": pipeline.generation, "lapsed": True}
    pipeline.lapsed_owner = "another run"
    assert event(LeaseTrigger(**waiting))["owner"] == "another run", "not free up to the deadline"
    pipeline.lapsed_owner = None
    assert event(LeaseTrigger(**waiting))["status"] == "free", "it was released"
    pipeline.lapsed_owner = "another run"
    monkeypatch.setattr("airflow_parallel_apply.triggers.lease._LOOK_AGAIN", timedelta(0))
    assert event(LeaseTrigger(**waiting))["status"] == "free", "it is time to ask Airflow again"


def test_a_task_that_was_deferred_by_an_earlier_release_finds_its_trigger() -> None:
    from airflow_parallel_apply.triggers.fence import FenceTrigger

    assert FenceTrigger is LeaseTrigger


class NoTriggerer:
    """Airflow ended a deferral, since no triggerer had looked in time."""

    def __init__(self, **parameters: Any) -> None:
        self._sensor = ChangesAvailableSensor(
            task_id="changes_available",
            pipeline="orders",
            log_url="/log",
            source_conn_id="parallel_apply_source",
            target_conn_id="parallel_apply_target",
            **parameters,
        )

    def resume(self, **interval: Any) -> Any:
        context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: None), **interval}
        ended = {"error": TriggerFailureReason.TRIGGER_TIMEOUT.value, "traceback": None}
        return self._sensor.resume_execution(TRIGGER_FAIL_REPR, ended, context)


def test_without_a_triggerer_the_task_looks_a_last_time(pipeline: FakePipeline) -> None:
    assert NoTriggerer().resume() == pipeline.changes
    pipeline.changes = None
    with pytest.raises(AirflowSkipException, match="no changes"):
        NoTriggerer().resume()
    pipeline.fail["changes_available"] = [Unavailable("the source is restarting")]
    with pytest.raises(AirflowException, match="is restarting") as raised:
        NoTriggerer().resume()
    assert not isinstance(raised.value, AirflowFailException), "a retry may help"


def test_without_a_triggerer_the_task_looks_whether_the_source_is_past_the_interval(pipeline: FakePipeline) -> None:
    end = pendulum.now("UTC").subtract(hours=1)
    interval = {"data_interval_start": end.subtract(hours=1), "data_interval_end": end}
    assert NoTriggerer().resume(**interval) == pipeline.changes
    pipeline.looks_before_past = 1
    with pytest.raises(AirflowException, match="no triggerer") as raised:
        NoTriggerer().resume(**interval)
    assert not isinstance(raised.value, AirflowFailException), "a retry may help"

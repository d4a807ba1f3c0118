"""Triggers of runs with intervals: they wait for the source's time, and for a turn at the pipeline."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pendulum
import pytest
from airflow.sdk.module_loading import import_string

from airflow_parallel_apply.triggers import LeaseTrigger, SourceTimeTrigger
from tests.provider.fakes import FakePipeline
from tests.support.variants import gated

pytestmark = pytest.mark.usefixtures("connections")

EIGHT: Final = datetime(2026, 3, 1, 8, tzinfo=UTC)
SOON: Final = pendulum.now("UTC").add(hours=1)
PAST: Final = pendulum.now("UTC").subtract(minutes=1)


def event(trigger: Any) -> dict[str, Any]:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(first())


def source_time(deadline: datetime) -> SourceTimeTrigger:
    return SourceTimeTrigger(
        parameters={"pipeline": "orders", "log_url": "/log"},
        source_conn_id="parallel_apply_source",
        time=EIGHT.isoformat(),
        deadline=deadline.isoformat(),
    )


def lease(*, deadline: datetime, reach_seqno: int | None = None) -> LeaseTrigger:
    return LeaseTrigger(
        pipeline="orders",
        target_conn_id="parallel_apply_target",
        owner="me",
        deadline=deadline.isoformat(),
        reach_seqno=reach_seqno,
        generation=7,
    )


def test_they_survive_being_stored() -> None:
    for trigger in (source_time(SOON), lease(deadline=SOON, reach_seqno=4)):
        path, arguments = trigger.serialize()
        again = import_string(path)(**json.loads(json.dumps(arguments)))
        assert again.serialize() == (path, arguments)


def test_a_lease_trigger_of_an_older_release_still_works(pipeline: FakePipeline) -> None:
    old = LeaseTrigger(pipeline="orders", target_conn_id="parallel_apply_target", owner="me", deadline=SOON.isoformat())
    assert event(old)["status"] == "free"


def test_the_source_is_asked_until_it_is_past(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_parallel_apply.triggers.source_time._POLL_SECONDS", 0)
    pipeline.looks_before_past = 3
    assert event(source_time(SOON)) == {"status": "past"}
    assert pipeline.calls == ["source_is_past"] * 4


def test_a_source_whose_clock_stays_behind_is_given_up(pipeline: FakePipeline) -> None:
    pipeline.looks_before_past = 1000
    assert event(source_time(PAST)) == {"status": "early"}


@gated
def test_a_turn_comes_when_what_goes_first_is_applied(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.applied_seqno = 3
    assert event(lease(deadline=PAST, reach_seqno=4))["status"] == "busy"
    pipeline.applied_seqno = 4
    assert event(lease(deadline=SOON, reach_seqno=4))["status"] == "free"
    monkeypatch.setattr("airflow_parallel_apply.triggers.lease._LOOK_AGAIN", timedelta(0))
    assert event(lease(deadline=SOON, reach_seqno=9))["status"] == "free", "it is time to ask Airflow again"


@gated
def test_a_queue_that_moves_is_waited_for_beyond_the_deadline(pipeline: FakePipeline) -> None:
    pipeline.owner = "another run"
    assert event(lease(deadline=PAST))["status"] == "busy"
    pipeline.generation = 8
    assert event(lease(deadline=PAST))["status"] == "others_ran"

"""A broker that dies in the middle of a run: lanes wait for it, or end red with what to do, and topics are exact."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.apply import retry
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.errors import Unavailable
from tests.crash.kafka_feed import KAFKA, captured_feed, require_replayed
from tests.support.rig import Rig
from tests.support.variants import gated

SECONDS = 120


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as found:
        yield found


@pytest.fixture
def written(source_dsn: str, ledger_dsn: str, broker: KafkaBroker, tmp_path: Path) -> Rig:
    return captured_feed(source_dsn, ledger_dsn, broker, tmp_path, steps=4)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Calls give up in a second; set when a lane has met that, and tries again."""
    for module in ("client", "positions", "records", "sending", "topics"):
        monkeypatch.setattr(f"{KAFKA}.{module}.PATIENCE_SECONDS", 1.0)
    tried = threading.Event()
    count_retry = LaneContext._count_retry

    def counted(context: LaneContext, error: BaseException) -> None:
        tried.set()
        count_retry(context, error)

    monkeypatch.setattr(LaneContext, "_count_retry", counted)
    return tried


def dies(broker: KafkaBroker, request: str, *, when: str, call: int) -> threading.Event:
    """Have the broker die at a request of a kind, before or after it is carried out; no answer comes. Set when dead."""
    dead = threading.Event()
    carry_out: Callable[..., Any] = getattr(broker.state, request)
    calls = 0

    def once(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        found = carry_out(*arguments, **named) if calls != call or when == "after" else None
        if calls == call:
            broker.stop()
            dead.set()
            raise ConnectionError
        return found

    setattr(broker.state, request, once)
    return dead


def require_equal(rig: Rig, broker: KafkaBroker) -> None:
    require_replayed(rig, broker)
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize(
    ("request_", "when", "call"),
    [
        ("end", "after", 7),
        pytest.param("end", "before", 7, marks=pytest.mark.long),
        pytest.param("append", "after", 12, marks=pytest.mark.long),
        pytest.param("append", "before", 12, marks=pytest.mark.long),
        pytest.param("begin_producer", "after", 8, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("is_long", [True, pytest.param(False, marks=pytest.mark.long)])
def test_lanes_wait_for_a_broker_that_restarts(
    written: Rig, broker: KafkaBroker, impatient: threading.Event, request_: str, when: str, call: int, is_long: bool
) -> None:
    opened = written.open("run")
    dead = dies(broker, request_, when=when, call=call)
    with ThreadPoolExecutor(max_workers=1) as pool:
        lanes = pool.submit(written.apply, opened)
        assert dead.wait(SECONDS)
        if is_long:
            assert impatient.wait(SECONDS), "a lane tells that it waits"
        broker.start()
        lanes.result()
    written.close(opened)
    require_equal(written, broker)


@gated
def test_a_broker_that_stays_away_ends_the_lanes_and_the_next_attempt_is_exact(
    written: Rig, broker: KafkaBroker, impatient: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = written.open("run")
    dead = dies(broker, "end", when="before", call=7)
    with monkeypatch.context() as hasty:
        hasty.setattr(retry, "_GIVE_UP_SECONDS", 1.0)
        with pytest.raises(Unavailable) as raised:
            written.apply(opened)
    assert dead.is_set()
    assert "Check that the brokers run" in str(raised.value)
    broker.start()
    again = written.open("run")
    written.apply(again)
    written.close(again)
    require_equal(written, broker)

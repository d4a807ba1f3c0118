"""A broker that dies in the middle of a run: lanes wait for it, or end red with what to do, and topics are exact."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.apply import retry
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.router.plan import plan
from tests.crash.conftest import crash_config
from tests.support.kafka.feeds import replayed
from tests.support.rig import Rig
from tests.support.variants import gated

KAFKA = "airflow_parallel_apply.pipeline.target.kafka"
SECONDS = 120


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as found:
        yield found


@pytest.fixture
def written(source_dsn: str, ledger_dsn: str, broker: KafkaBroker, tmp_path: Path) -> Rig:
    """Several units for each of two channels, around a truncate."""
    config = replace(crash_config(tmp_path), channels=2, ddl=DdlPolicy.REFUSE)
    url = f"kafka://{broker.address}/feed?staging={tmp_path}/staging"
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=url, ledger_dsn=ledger_dsn)
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 30) i", "TRUNCATE t")
    for step in range(4):
        rig.write(f"INSERT INTO t SELECT i, 'b' FROM generate_series({step * 100}, {step * 100 + 99}) i")
        rig.write("UPDATE t SET v = v || 'c' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 3")
    rig.capture("run")
    plan(rig.config, rig.target)
    return rig


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
    of_source = dict(rig.rows("SELECT id, v FROM t", side="source"))
    assert {id_: row["v"] for id_, row in replayed(broker.address, "feed.public.t").items()} == of_source
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

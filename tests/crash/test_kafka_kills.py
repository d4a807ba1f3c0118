"""A lane that sends to Kafka, killed or asleep where it holds something: its topics show each change once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.demo.postgres import PostgresServer
from tests.crash.kafka_feed import KAFKA, TOPIC, captured_feed, require_replayed
from tests.crash.scene import Scene
from tests.support.kafka import committed
from tests.support.step_process import Fault
from tests.support.steps import Steps
from tests.support.variants import GATED, gated

PLACES = {
    "while it stages": Fault(at=f"{KAFKA}.staging:Staging.write", when="after", call=2),
    "between staging and commit": Fault(at=f"{KAFKA}.target:KafkaTarget.commit", when="before", call=2),
    "behind a take's fence": Fault(at=f"{KAFKA}.ownership:Ownership.hold", when="after", call=2),
    "in a transaction, before the position": Fault(at=f"{KAFKA}.sending:Sender.send", when="after", call=2),
    "in a transaction, behind the position": Fault(at=f"{KAFKA}.positions:Positions.write", when="after", call=2),
    "between commit and finish": Fault(at=f"{KAFKA}.target:KafkaTarget.commit", when="after", call=2),
}
"""The places where a lane dies, or falls asleep."""


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as found:
        yield found


@pytest.fixture
def written(
    source_dsn: str, ledger_dsn: str, target_server: PostgresServer, broker: KafkaBroker, steps: Steps, tmp_path: Path
) -> Scene:
    rig = captured_feed(source_dsn, ledger_dsn, broker, tmp_path, steps=6)
    return Scene(rig=rig, target_server=target_server, steps=steps)


def require_equal(scene: Scene, broker: KafkaBroker) -> None:
    require_replayed(scene.rig, broker)
    assert len({position.seqno for position in scene.positions()}) == 1


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=GATED if "transaction, behind" in place else pytest.mark.long) for place in PLACES],
)
def test_a_killed_lane_leaves_nothing_half_and_nothing_twice(written: Scene, broker: KafkaBroker, place: str) -> None:
    opened = written.open("run")
    lane = written.start_lane(opened, fault=PLACES[place])
    assert lane.wait() == -signal.SIGKILL, lane.tail()
    written.rig.lane(opened, 1)
    written.close(opened)
    require_equal(written, broker)


@gated
@pytest.mark.parametrize(
    "place",
    [
        "in a transaction, behind the position",
        pytest.param("between staging and commit", marks=pytest.mark.long),
        pytest.param("behind a take's fence", marks=pytest.mark.long),
    ],
)
def test_the_broker_refuses_a_lane_that_wakes_up_late(written: Scene, broker: KafkaBroker, place: str) -> None:
    opened = written.open("run")
    lane = written.start_lane(opened, fault=replace(PLACES[place], signal=signal.SIGSTOP))
    lane.wait_stopped()
    written.rig.lane(opened, 1)
    written.close(opened)
    require_equal(written, broker)
    before = committed(broker.address, TOPIC)
    lane.signal(signal.SIGCONT)
    lane.wait()
    assert committed(broker.address, TOPIC) == before
    require_equal(written, broker)


@gated
def test_an_opening_that_dies_before_it_stamps_the_positions_is_repeated(written: Scene, broker: KafkaBroker) -> None:
    opening = written.start_open("run", fault=Fault(at=f"{KAFKA}.ownership:Ownership._stamp", when="before"))
    assert opening.wait() == -signal.SIGKILL, opening.tail()
    written.rerun("run")
    require_equal(written, broker)

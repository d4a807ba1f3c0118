"""A lane that sends to Kafka, killed or asleep where it holds something: its topics show each change once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.router.plan import plan
from tests.crash.conftest import crash_config
from tests.crash.scene import Scene
from tests.support.kafka import committed
from tests.support.kafka.feeds import replayed
from tests.support.rig import Rig
from tests.support.step_process import Fault
from tests.support.steps import Steps
from tests.support.variants import GATED, gated

KAFKA = "airflow_parallel_apply.pipeline.target.kafka"
TOPIC = "feed.public.t"

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
    """Several units for each of two channels, around a truncate."""
    config = replace(crash_config(tmp_path), channels=2, ddl=DdlPolicy.REFUSE)
    url = f"kafka://{broker.address}/feed?staging={tmp_path}/staging"
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=url, ledger_dsn=ledger_dsn)
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 30) i", "TRUNCATE t")
    for step in range(6):
        rig.write(f"INSERT INTO t SELECT i, 'b' FROM generate_series({step * 100}, {step * 100 + 99}) i")
        rig.write("UPDATE t SET v = v || 'c' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 3")
    rig.capture("run")
    plan(rig.config, rig.target)
    return Scene(rig=rig, target_server=target_server, steps=steps)


def require_equal(scene: Scene, broker: KafkaBroker) -> None:
    of_source = dict(scene.rig.rows("SELECT id, v FROM t", side="source"))
    assert {id_: row["v"] for id_, row in replayed(broker.address, TOPIC).items()} == of_source
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

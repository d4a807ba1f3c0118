"""A broker that answers with an error: a sender goes on, says what was refused, or learns that it lost its place.
Whatever comes of it, each message is there once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    OwnershipLost,
    ParallelApplyError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, RoutingChange
from airflow_parallel_apply.pipeline.model.epoch import Branch, StagedUnit, Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import fence, kafka_errors
from airflow_parallel_apply.pipeline.target.kafka.positions import Positions
from airflow_parallel_apply.pipeline.target.kafka.sending import (
    produce,
    transaction,
)
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.contract.targets import InKafka
from tests.support.kafka import committed
from tests.support.variants import gated

TOPIC = "feed.public.t"
KAFKA = "airflow_parallel_apply.pipeline.target.kafka"
GOES_ON = None

CORRUPT, UNKNOWN_TOPIC, NOT_LEADER, TOO_LARGE = 2, 3, 6, 10
LOADING, UNAVAILABLE, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS, FORBIDDEN_TOPIC = 14, 15, 16, 19, 29
INVALID_TIMESTAMP, OUT_OF_ORDER, OLD_EPOCH, INVALID_STATE, UNKNOWN_ID, CONCURRENT = 32, 45, 47, 48, 49, 51
FORBIDDEN_ID, UNKNOWN_PRODUCER, INVALID_RECORD, FENCED = 53, 59, 87, 90
"""Kafka's codes of errors."""


@pytest.fixture(name="broker")
def broker_of_one_partition() -> Iterator[KafkaBroker]:
    with KafkaBroker(default_partitions=1) as found:
        yield found


class Lane:
    """A session that holds channel 0."""

    def __init__(self, broker: KafkaBroker, staging: Path, options: str = "") -> None:
        self._admitted = InKafka(broker.address, f"{staging}{options}")
        self.session = self._admitted.open()
        self.session.migrate()
        owned = self.session.acquire(LeaseRequest(log_id="log", owner="run", lease=timedelta(seconds=30)))
        self.generation = owned.generation
        self.session.route(RoutingChange(generation=self.generation, log_id="log", routing=Routing(channels=1)))
        self.take("first")

    def take(self, token: str) -> int:
        self.token = token
        return self.session.target.take(0, generation=self.generation, token=token).seqno

    def staged(self, after_seqno: int, *keys: int) -> StagedUnit:
        unit = Unit(
            pipeline="demo",
            generation=self.generation,
            kind=Branch(0),
            channels=1,
            token=self.token,
            after_seqno=after_seqno,
            last_seqno=after_seqno + 1,
            row_count=0,
        )
        return self._admitted.stage(self.session, unit, keys)

    def commit(self, staged: StagedUnit) -> None:
        self.session.commit(staged.unit, [Merge(staged)])


@pytest.fixture(name="lane")
def lane_of_one_channel(broker: KafkaBroker, tmp_path: Path) -> Iterator[Lane]:
    made = Lane(broker, tmp_path)
    yield made
    made.session.close()


def refuses(broker: KafkaBroker, request: str, code: int, *, topic: str = TOPIC) -> threading.Event:
    """Have the broker answer one request with an error, of those that are about a topic."""
    carry_out: Callable[..., Any] = getattr(broker.state, request)
    refused = threading.Event()

    def once(*arguments: Any, **named: Any) -> Any:
        is_meant = request != "append" or arguments[0] == topic
        if refused.is_set() or not is_meant:
            return carry_out(*arguments, **named)
        refused.set()
        return (code, -1) if request == "append" else code

    setattr(broker.state, request, once)
    return refused


OFTEN = [
    ("append", NOT_LEADER, GOES_ON),
    ("append", TOO_LARGE, TargetError),
    ("append", UNKNOWN_PRODUCER, Unavailable),
    ("add", CONCURRENT, GOES_ON),
    ("end", UNKNOWN_ID, Unavailable),
    ("end", FENCED, OwnershipLost),
]
SELDOM = [
    ("append", CORRUPT, GOES_ON),
    ("append", NOT_ENOUGH_REPLICAS, GOES_ON),
    ("append", INVALID_RECORD, TargetError),
    ("append", INVALID_TIMESTAMP, TargetError),
    ("append", FORBIDDEN_TOPIC, ConfigurationError),
    ("append", OUT_OF_ORDER, Unavailable),
    ("append", INVALID_STATE, Unavailable),
    ("append", OLD_EPOCH, OwnershipLost),
    ("add", LOADING, GOES_ON),
    ("add", NOT_COORDINATOR, GOES_ON),
    ("add", UNAVAILABLE, GOES_ON),
    ("add", FORBIDDEN_ID, ConfigurationError),
    ("add", FORBIDDEN_TOPIC, ConfigurationError),
    ("add", UNKNOWN_ID, Unavailable),
    ("add", FENCED, OwnershipLost),
    ("end", LOADING, GOES_ON),
    ("end", NOT_COORDINATOR, GOES_ON),
    ("end", CONCURRENT, GOES_ON),
    ("end", INVALID_STATE, Unavailable),
]


@pytest.mark.parametrize(
    ("request_", "code", "outcome"), [*OFTEN, *(pytest.param(*one, marks=pytest.mark.long) for one in SELDOM)]
)
def test_what_a_broker_refuses_is_sent_again_or_told_by_its_name(
    broker: KafkaBroker, lane: Lane, request_: str, code: int, outcome: type[ParallelApplyError] | None
) -> None:
    staged = lane.staged(-1, 1, 2, 3)
    refused = refuses(broker, request_, code)
    if outcome is GOES_ON:
        lane.commit(staged)
    else:
        with pytest.raises(outcome):
            lane.commit(staged)
        assert committed(broker.address, TOPIC) == []
        assert lane.take("second") == -1
        lane.commit(lane.staged(-1, 1, 2, 3))
    assert refused.is_set()
    assert [message.key for message in committed(broker.address, TOPIC)] == [b'{"id":%d}' % key for key in (1, 2, 3)]


def send_until_refused(address: KafkaAddress) -> None:
    producer = fence(address, ["one"])["one"]
    with kafka_errors("commit"), transaction(producer):
        for _ in range(12_000):
            produce(producer, TOPIC, b"v", b"k", 0, {})
            producer.poll(0.01)


@pytest.mark.parametrize(
    ("code", "outcome"), [(TOO_LARGE, TargetError), (FORBIDDEN_TOPIC, ConfigurationError), (OLD_EPOCH, OwnershipLost)]
)
def test_what_was_refused_is_told_by_its_name_between_two_messages_too(
    broker: KafkaBroker, code: int, outcome: type[ParallelApplyError]
) -> None:
    refused = refuses(broker, "append", code)
    with pytest.raises(outcome):
        send_until_refused(address_of(broker))
    assert refused.is_set()


@gated
def test_a_unit_is_waited_for_as_long_as_its_messages_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KafkaBroker(default_partitions=8) as broker:
        lane = Lane(broker, tmp_path)
        staged = lane.staged(-1, *range(40))
        append = broker.state.append

        def slow(*arguments: Any) -> Any:
            threading.Event().wait(0.6)
            return append(*arguments)

        # Less than all of them take, and much more than one.
        monkeypatch.setattr(f"{KAFKA}.sending.PATIENCE_SECONDS", 3.0)
        monkeypatch.setattr(broker.state, "append", slow)
        lane.commit(staged)
        assert len(committed(broker.address, TOPIC)) == 40
        lane.session.close()


def test_a_commit_that_comes_to_its_end_behind_its_senders_patience_is_not_made_again(
    broker: KafkaBroker, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a broker writes the markers of a transaction whose commit it has decided."""
    staged = lane.staged(-1, 1, 2, 3)
    end, begin = broker.state.end, broker.state.begin_producer
    begins, ended = threading.Event(), threading.Event()

    def late(*arguments: Any, **named: Any) -> Any:
        begins.wait(180)
        found = end(*arguments, **named)
        ended.set()
        return found

    def behind_it(transactional_id: str) -> Any:
        begins.set()
        assert ended.wait(180)
        return begin(transactional_id)

    monkeypatch.setattr(f"{KAFKA}.sending.PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(broker.state, "end", late)
    monkeypatch.setattr(broker.state, "begin_producer", behind_it)
    with pytest.raises(Unavailable):
        lane.commit(staged)
    lane.commit(staged)
    assert len(committed(broker.address, TOPIC)) == 3


def test_what_takes_longer_than_a_transaction_may_is_told_so(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(broker, tmp_path, "&transaction.timeout.ms=3000")
    staged = lane.staged(-1, 1, 2, 3)
    write = Positions.write

    def slow(positions: Positions, *arguments: Any) -> None:
        threading.Event().wait(3.1)
        # As a broker does with a transaction that is too old.
        broker.state.begin_producer("feed.demo.0")
        write(positions, *arguments)

    monkeypatch.setattr(Positions, "write", slow)
    with pytest.raises(Unavailable, match=r"longer than transaction\.timeout\.ms"):
        lane.commit(staged)
    lane.session.close()


def test_brokers_that_refuse_a_password_are_not_waited_for_as_if_they_were_away(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{KAFKA}.topics.PATIENCE_SECONDS", 5.0)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    address = replace(address_of(broker), client=tuple(login.items()))
    with pytest.raises(ConfigurationError, match="SASL"), kafka_errors("probe"):
        Topics(address).cluster()


def address_of(broker: KafkaBroker) -> KafkaAddress:
    return KafkaAddress.parse(Endpoint(conn_id="target", url=f"kafka://{broker.address}/feed"), is_staged=False)

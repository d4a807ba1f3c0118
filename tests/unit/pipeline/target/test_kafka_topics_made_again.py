"""Topics that are deleted, made again, given more partitions or emptied by retention under a pipeline."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.demo.kafka.state import Partition
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import (
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.ledger.protocol import RoutingChange
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import fence
from airflow_parallel_apply.pipeline.target.kafka.positions import Positions
from airflow_parallel_apply.pipeline.target.kafka.sending import (
    Sender,
    transaction,
)
from airflow_parallel_apply.pipeline.target.kafka.staging import Message
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics
from tests.support.kafka import committed
from tests.unit.pipeline.target.test_kafka_refusals import (
    TOPIC,
    UNKNOWN_TOPIC,
    Lane,
    address_of,
    broker_of_one_partition,  # noqa: F401  # a fixture
    lane_of_one_channel,  # noqa: F401  # a fixture
)


def test_a_topic_that_was_deleted_meanwhile_is_made_anew(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = broker.state.create

    def on_request(topic: str, partitions: int, settings: Any = None) -> Any:
        """As brokers do that make no topic by themselves."""
        return create(topic, partitions, settings) if settings is not None else UNKNOWN_TOPIC

    monkeypatch.setattr(broker.state, "create", on_request)
    lane = Lane(broker, tmp_path, "&topic.metadata.propagation.max.ms=500")
    lane.commit(lane.staged(-1, 1))
    broker.state.delete(TOPIC)
    # A busy machine's client may give up before it learns that the topic is gone.
    with pytest.raises(Unavailable, match=rf"{TOPIC}: Local: Unknown (topic|partition)|not taken by the brokers"):
        lane.commit(lane.staged(0, 2))
    lane.take("second")
    lane.commit(lane.staged(0, 2))
    assert [message.key for message in committed(broker.address, TOPIC)] == [b'{"id":2}']
    lane.session.close()


def test_a_truncate_is_in_partitions_that_were_added_since_its_topic_was_first_sent_to(broker: KafkaBroker) -> None:
    address = address_of(broker)
    producer = fence(address, ["one"])["one"]
    sender = Sender(address, Topics(address), channels=1)

    def sent(operation: str, seqno: int) -> None:
        message = Message(
            order=(seqno, 0),
            topic=TOPIC,
            bucket=0,
            operation=operation,
            commit_time="2026-01-01T00:00:00.000000Z",
            key=None,
            value=b"{}",
        )
        with transaction(producer):
            sender.send(producer, [message])

    sent("insert", 0)
    broker.state.topics[TOPIC] += [Partition(), Partition()]
    sent("truncate", 1)
    found = committed(broker.address, TOPIC)
    assert [read.partition for read in found if read.headers["operation"] == "truncate"] == [0, 1, 2]


def expire(partition: Partition) -> None:
    """As retention does it, and after a while."""
    partition.removed = partition.end
    partition.log.clear()


def test_positions_are_read_of_a_topic_that_was_made_again_a_moment_ago(broker: KafkaBroker) -> None:
    address = KafkaAddress.parse(Endpoint(conn_id="broker", url=f"kafka://{broker.address}/feed"), is_staged=False)
    with closing(Positions(address, "demo")) as positions:
        broker.state.create(positions.topic, 3)
        assert positions.read([0, 1]) == {}
        for _ in range(8):
            broker.state.delete(positions.topic)
            assert positions.read([0]) == {}
            broker.state.create(positions.topic, 257)
            assert positions.read(range(6)) == {}
            broker.state.delete(positions.topic)
            broker.state.create(positions.topic, 3)
            assert positions.read(range(6)) == {}


@pytest.mark.parametrize("place", [0, 1])
def test_positions_that_retention_removed_are_no_beginning(broker: KafkaBroker, lane: Lane, place: int) -> None:
    lane.commit(lane.staged(-1, 1))
    expire(broker.state.topics["feed._positions.demo"][place])
    with pytest.raises(TargetError, match=rf"partition {place} of topic feed\._positions\.demo were removed"):
        lane.session.target.positions()
    assert "deleted" in lane.session.target.drop(force=True).done[0]


def test_what_was_sent_is_not_sent_again_though_positions_and_messages_are_gone(
    broker: KafkaBroker, lane: Lane
) -> None:
    lane.commit(lane.staged(-1, 1))
    expire(broker.state.topics[TOPIC][0])
    broker.state.delete("feed._positions.demo")
    lane.session.target.migrate()
    with pytest.raises(TargetError, match=r"positions in .* are gone, and feed\.public\.t had messages"):
        lane.session.route(RoutingChange(generation=lane.generation, log_id="log", routing=Routing(channels=1)))

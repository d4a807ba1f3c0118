"""librdkafka's mock cluster: a pipeline runs into it, but it judges no transactions, so no other test relies on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer

from airflow_parallel_apply.demo.kafka import KafkaBroker
from tests.support.kafka import committed
from tests.support.kafka.feeds import replayed
from tests.support.rig import Rig
from tests.support.variants import gated

SECONDS = 30


@pytest.fixture
def mock() -> Iterator[str]:
    """The cluster lives as long as the client that made it, and takes others' connections."""
    client = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 2})
    (node,) = client.list_topics(timeout=SECONDS).brokers.values()
    yield f"{node.host}:{node.port}"
    client.flush(0)


def transactional(address: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "one", "linger.ms": 0, "log_level": 2})
    producer.init_transactions(SECONDS)
    return producer


def is_fenced(address: str) -> bool:
    """True if a producer whose id another one has taken over cannot commit what it sent before."""
    former = transactional(address)
    former.begin_transaction()
    former.produce("topic", "former", partition=0)
    former.flush(SECONDS)
    transactional(address)
    try:
        former.commit_transaction(SECONDS)
    except KafkaException as error:
        return bool(error.args[0].fatal())
    return False


def hides_aborted(address: str) -> bool:
    producer = transactional(address)
    producer.begin_transaction()
    producer.produce("other", "aborted", partition=0)
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    return committed(address, "other") == []


def test_the_mock_neither_fences_nor_isolates_and_the_broker_of_the_tests_does(mock: str) -> None:
    with KafkaBroker() as broker:
        assert (is_fenced(broker.address), hides_aborted(broker.address)) == (True, True)
    assert (is_fenced(mock), hides_aborted(mock)) == (False, False)


@gated
def test_a_pipeline_runs_into_brokers_of_another_make(
    make_rig: Callable[..., Rig], mock: str, broker: KafkaBroker
) -> None:
    rig = make_rig("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig = replace(rig, target_dsn=rig.target_dsn.replace(broker.address, mock))
    # It makes topics when they are asked for, of four partitions, and has no request to make them.
    client = Producer({"bootstrap.servers": mock, "log_level": 2})
    for topic in ("feed.public.t", "feed._positions.demo"):
        client.list_topics(topic, timeout=SECONDS)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) i", "UPDATE t SET v = 'b' WHERE id < 20")
    rig.run()
    rows = {id_: row["v"] for id_, row in replayed(mock, "feed.public.t").items()}
    assert rows == dict(rig.rows("SELECT id, v FROM t", side="source"))

"""Looking at the messages of a topic before a run: whether there are any, and how their keys were written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, MessageFormat
from airflow_parallel_apply.pipeline.target.kafka.check import has_messages, retyped_columns
from airflow_parallel_apply.pipeline.target.kafka.client import fence
from airflow_parallel_apply.pipeline.target.kafka.ownership import Ownership
from airflow_parallel_apply.pipeline.target.kafka.positions import Positions
from airflow_parallel_apply.pipeline.target.kafka.sending import open_transaction, produce, transaction
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics

TOPIC = "feed.public.t"


@pytest.fixture(scope="module")
def address() -> Iterator[KafkaAddress]:
    with KafkaBroker(default_partitions=1) as broker:
        url = f"kafka://{broker.address}/feed"
        yield KafkaAddress.parse(Endpoint(conn_id="feed", url=url), is_staged=False)


def test_what_was_sent_and_aborted_is_no_message(address: KafkaAddress) -> None:
    producer = fence(address, ["one"])["one"]
    with open_transaction(producer):
        produce(producer, TOPIC, b"", b"", 0, {})
        producer.flush()
    assert not has_messages(address, TOPIC, 1)
    with transaction(producer):
        produce(producer, TOPIC, b"", None, 0, {})
    assert has_messages(address, TOPIC, 1)


@pytest.mark.parametrize(
    ("table", "type_name", "keys", "found"),
    [
        ("typed", "decimal 10 2", ["1.25", "1.50"], ["id"]),
        ("text", "decimal 10 2", ["1.25", "1.5"], []),
        ("either", "decimal 10 2", ["1.25"], []),
        ("former", "decimal 10 3", ["1.25", "1.50"], ["id"]),
        ("whole", "decimal 10 0", ["10"], []),
        ("moved", "decimal 10 2", [None, "1.50"], ["id"]),
        ("numbers", "float 64", ["NaN", 1.5], ["id"]),
        ("texts", "float 64", ["NaN", "1.5"], []),
    ],
)
def test_a_column_of_a_key_is_told_by_the_first_value_that_its_two_forms_do_not_share(
    address: KafkaAddress, table: str, type_name: str, keys: list[object], found: list[str]
) -> None:
    value = ValueType.parse(type_name)
    column = Column(name="id", type_name="", kind=KeyKind(value.kind), key=True, value=value)
    relation = Relation(
        relation_id=0, schema="public", table=table, replica_identity=ReplicaIdentity.KEY, columns=(column,)
    )
    producer = fence(address, ["one"])["one"]
    with transaction(producer):
        for key in keys:
            sent = json.dumps({"id": key} if key else {"a": 1}).encode()
            produce(producer, address.topic(relation.name), b"", sent, 0, {})
    asked = replace(address, text_columns=(f"{relation.name}.id",))
    assert retyped_columns(asked, relation, 1) == found


def test_a_pipeline_sends_messages_of_one_format(address: KafkaAddress) -> None:
    def owning(of: KafkaAddress) -> Ownership:
        return Ownership(of, "p", Positions(of, "p"), None)

    Topics(address).ensure(address.positions_topic("p"), partitions=2, is_compacted=True)
    owning(address).lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    with pytest.raises(ConfigurationError, match=r"format json, .* debezium.*format=json again"):
        owning(replace(address, format=MessageFormat.DEBEZIUM)).own(2)
    assert owning(address).own(2)


def test_a_pipeline_of_an_earlier_version_keeps_the_format_that_its_next_owner_has(address: KafkaAddress) -> None:
    positions = Positions(address, "q")
    ownership = Ownership(address, "q", positions, None)
    Topics(address).ensure(positions.topic, partitions=2, is_compacted=True)
    ownership.lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    head = positions.head()
    assert head is not None
    producer = fence(address, ["one"])["one"]
    with transaction(producer):
        positions.write_head(producer, replace(head, format=""))
    assert ownership.own(2)
    assert positions.head() == replace(head, format="json", generation=2)

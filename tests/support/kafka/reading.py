"""Reads a topic as a plain consumer does, without a line of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_SECONDS = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One message."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


def committed(address: str, topic: str, *, isolation: str = "read_committed") -> list[Read]:
    """All messages of a topic, by partition and offset; none where there is no such topic."""
    options = {"bootstrap.servers": address, "group.id": "reader", "isolation.level": isolation}
    consumer = Consumer(options | {"enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10})
    try:
        partitions = consumer.list_topics(timeout=_SECONDS).topics.get(topic)
        if partitions is None:
            return []
        left = set(partitions.partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        return sorted(_read(consumer, left), key=lambda read: (read.partition, read.offset))
    finally:
        consumer.close()


def _read(consumer: Consumer, left: set[int]) -> Iterator[Read]:
    deadline = time.monotonic() + _SECONDS
    while left:
        assert time.monotonic() < deadline, f"partitions {left} were not read to their ends"
        # More at once would be waited for.
        for message in consumer.consume(1, 0.1):
            error = message.error()
            if error is None:
                yield Read(
                    partition=message.partition(),
                    offset=message.offset(),
                    key=message.key(),
                    value=message.value(),
                    headers={name: bytes(value).decode() for name, value in message.headers() or ()},
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif not error.retriable():
                raise KafkaException(error)

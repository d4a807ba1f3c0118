"""Reads the records of a topic up to its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import TargetError, Unavailable
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import PATIENCE_SECONDS, library, make_consumer

_POLL_SECONDS: Final = 0.1


def read_to_end(consumer: Any, topic: str, starts: Mapping[int, int]) -> Iterator[Any]:
    """The committed messages of partitions from an offset on, each partition's in their order. Errors: librdkafka's
    own; `Unavailable`.
    """
    kafka = library()
    consumer.assign([kafka.TopicPartition(topic, *start) for start in starts.items()])
    left, deadline = set(starts), time.monotonic() + PATIENCE_SECONDS
    while left:
        # One by one: `consume` of many would wait for its whole timeout where there are fewer.
        message = consumer.poll(_POLL_SECONDS)
        error = None if message is None else message.error()
        if message is not None and error is None:
            yield message
            deadline = time.monotonic() + PATIENCE_SECONDS
        elif error is not None and error.code() == kafka.KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        elif error is not None and not error.retriable():
            raise kafka.KafkaException(error)
        if time.monotonic() > deadline:
            raise Unavailable(f"{topic} was not read to its end in time", op="read records")
    consumer.unassign()


def last_records(address: KafkaAddress, topic: str) -> tuple[dict[str, Any], bool]:
    """The last record of each key of a topic of one partition, and whether some were removed otherwise than by
    compaction. Errors: as of `read_to_end`.
    """
    with closing(make_consumer(address)) as consumer:
        read = read_to_end(consumer, topic, {0: 0})
        found = {message.key().decode(): json.loads(message.value()) for message in read}
        low, _ = consumer.get_watermark_offsets(library().TopicPartition(topic, 0), timeout=PATIENCE_SECONDS)
    # Compaction leaves the first offset where it was.
    return found, low > 0


def removed_records(topic: str, partition: int, *, op: str, instead: str) -> TargetError:
    """The error of a partition whose records say no more what was sent."""
    return TargetError(
        f"records of partition {partition} of topic {topic} were removed, and nothing else says what was sent",
        op=op,
        hint="Compaction keeps the last record of each key, and retention does not: the topic's cleanup.policy must be "
        f"compact alone. Nothing is sent twice. {instead}",
    )

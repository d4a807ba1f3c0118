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


def last_records(address: KafkaAddress, topic: str) -> dict[str, Any]:
    """The last record of each key of a topic of one partition. Errors: as of `read_to_end`; `TargetError` where there
    were records, and the last one was removed.
    """
    with closing(make_consumer(address)) as consumer:
        read = read_to_end(consumer, topic, {0: 0})
        found = {message.key().decode(): json.loads(message.value()) for message in read}
        low, _ = consumer.get_watermark_offsets(library().TopicPartition(topic, 0), timeout=PATIENCE_SECONDS)
    if low > 0 and not found:
        raise removed_records(topic, 0, op="export", instead="export to another prefix")
    return found


def removed_records(topic: str, partition: int, *, op: str, instead: str) -> TargetError:
    """The error of a partition whose last record is gone: what it said is known no more."""
    return TargetError(
        f"partition {partition} of topic {topic} had records, and the last one was removed",
        op=op,
        hint="Compaction keeps it, retention does not: the topic's cleanup.policy must be compact alone. What was sent "
        f"is known no more: {instead}.",
    )

"""Reads a topic as any consumer of what is committed does, from its beginning to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from airflow_parallel_apply.pipeline.compare.kafka.folding import Order
from airflow_parallel_apply.pipeline.errors import TargetError, Unavailable
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import PATIENCE_SECONDS, kafka_errors, library, make_consumer
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics

_MESSAGES: Final = 1000
_WAIT_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message. `operation` and `order` are its headers'."""

    partition: int
    order: Order
    operation: str
    key: bytes | None
    value: bytes | None


class TopicReader:
    """Reads one topic after the other. Not thread-safe, but for `cancel`."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._topics = Topics(address)
        self._cancelled = threading.Event()

    def messages(self, topic: str) -> Iterator[Received]:
        """All messages that are committed when a partition's end is reached, those of a partition in their order; none
        where there is no such topic. Errors: `Unavailable`, also when cancelled; `TargetError` for a message of others.
        """
        with kafka_errors("compare"):
            left = set(range(self._topics.counts().get(topic, 0)))
            if not left:
                return
            with closing(make_consumer(self._address)) as consumer:
                consumer.assign([library().TopicPartition(topic, partition, 0) for partition in left])
                heard = time.monotonic()
                while left:
                    found = consumer.consume(_MESSAGES, _WAIT_SECONDS)
                    if self._cancelled.is_set():
                        raise Unavailable("the comparison was cancelled", op="compare")
                    if found:
                        heard = time.monotonic()
                    elif time.monotonic() - heard > PATIENCE_SECONDS:
                        raise Unavailable(f"{topic} was not read to its end in time", op="compare")
                    yield from _received(topic, found, left)

    def cancel(self) -> None:
        """End what is being read with an error; called from another thread."""
        self._cancelled.set()


def _received(topic: str, found: list[Any], left: set[int]) -> Iterator[Received]:
    """Messages; partitions of which this is the end are no longer among those that are left."""
    kafka = library()
    for message in found:
        error = message.error()
        if error is None:
            headers = dict(message.headers() or ())
            try:
                order = int(headers["seqno"]), int(headers["fragno"])
                operation = headers["operation"].decode()
            except (KeyError, ValueError) as wrong:
                place = f"{message.partition()}/{message.offset()}"
                raise TargetError(
                    f"message {place} of topic {topic} is not a pipeline's: it lacks a header",
                    op="compare",
                    hint="Nobody else may send to the topics of a pipeline.",
                ) from wrong
            yield Received(
                partition=message.partition(),
                order=order,
                operation=operation,
                key=message.key(),
                value=message.value(),
            )
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        elif not error.retriable():
            raise kafka.KafkaException(error)

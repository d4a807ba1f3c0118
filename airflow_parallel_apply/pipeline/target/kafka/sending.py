"""Messages on their way to partitions: a sender inside a transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import TargetError, Unavailable
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, PartitionBy
from airflow_parallel_apply.pipeline.target.kafka.client import AWAY, PATIENCE_SECONDS, TOO_LARGE, library
from airflow_parallel_apply.pipeline.target.kafka.staging import Message
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics

BY_KEY: Final = -1
"""The partition that librdkafka chooses by the key."""
_POLL_EVERY: Final = 1000
_FULL_SECONDS: Final = 0.1
_FLUSH_SECONDS: Final = 1.0


@contextmanager
def transaction(producer: Any) -> Iterator[None]:
    """Commit what is sent inside, all or nothing. Errors: librdkafka's own; one that says nothing of the outcome leaves
    it to the next holder of the producer's id, whose take ends the transaction. `Unavailable`.
    """
    producer.begin_transaction()
    try:
        yield
        finished(producer)
    except BaseException:
        with suppress(library().KafkaException):
            producer.abort_transaction(PATIENCE_SECONDS)
        raise


@contextmanager
def open_transaction(producer: Any) -> Iterator[None]:
    """Begin; what is not `finished` inside is aborted. Errors: as of `transaction`."""
    producer.begin_transaction()
    try:
        yield
    finally:
        # Of a transaction that was committed there is nothing to abort.
        with suppress(library().KafkaException):
            producer.abort_transaction(PATIENCE_SECONDS)


def finished(producer: Any) -> None:
    """Commit, when all that waits was sent, however long that takes. Errors: as of `transaction`; `Unavailable` where
    nothing goes on.
    """
    left, since = len(producer), time.monotonic()
    while left:
        still = producer.flush(_FLUSH_SECONDS)
        if still < left:
            since = time.monotonic()
        elif time.monotonic() - since > PATIENCE_SECONDS:
            raise Unavailable(f"{still} messages are not taken by the brokers", op="commit", hint=AWAY)
        left = still
    kafka = library()
    try:
        producer.commit_transaction(PATIENCE_SECONDS)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError._INCONSISTENT or not producer.undelivered:
            raise
        reason, message = producer.undelivered[0]
        raise kafka.KafkaException(kafka.KafkaError(reason.code(), f"{message.topic()}: {reason.str()}")) from error


class Sender:
    """Sends messages of units of `channels` channels. Not thread-safe."""

    def __init__(self, address: KafkaAddress, topics: Topics, *, channels: int) -> None:
        self._address = address
        self._topics = topics
        self._channels = channels

    def send(self, producer: Any, messages: Iterable[Message]) -> None:
        """Hand all messages to the producer, in their order. Errors: librdkafka's own."""
        for number, message in enumerate(messages):
            headers = [
                ("seqno", b"%d" % message.order[0]),
                ("fragno", b"%d" % message.order[1]),
                ("operation", message.operation.encode()),
                ("commit_time", message.commit_time.encode()),
            ]
            options = {"timestamp": _millis(message.commit_time), "headers": headers}
            for place in self._places(producer, message):
                produce(producer, message.topic, message.value, message.key, place, options)
                if message.operation == "delete" and self._address.tombstones:
                    produce(producer, message.topic, None, message.key, place, options)
            if number % _POLL_EVERY == 0:
                producer.poll(0)

    def _places(self, producer: Any, message: Message) -> Iterable[int]:
        """The partitions that a message goes to."""
        count = self._topics.ensure(
            message.topic, partitions=self._address.partitions, is_compacted=self._address.tombstones
        )
        if message.operation == "truncate":
            # Whoever reads a partition learns that its rows are gone, also in one that was added since.
            known = producer.list_topics(message.topic, timeout=PATIENCE_SECONDS).topics[message.topic]
            return list(known.partitions)
        if self._address.partition_by is PartitionBy.CHANNEL:
            return [message.bucket * self._channels // BUCKET_COUNT % count]
        if message.key is None:
            return [message.bucket * count // BUCKET_COUNT]
        return [BY_KEY]


def produce(
    producer: Any, topic: str, value: bytes | None, key: bytes | None, partition: int, options: dict[str, Any]
) -> None:
    """Hand a message to the producer, and wait where it has too many that are not sent. Errors: `TargetError` for one
    that is too large; librdkafka's own, which say why where a message before this one made the transaction fail.
    """
    kafka = library()
    while True:
        try:
            producer.produce(topic, value=value, key=key, partition=partition, **options)
            return
        except BufferError:
            producer.poll(_FULL_SECONDS)
        except kafka.KafkaException as error:
            code = error.args[0].code()
            if code == kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                raise TargetError(
                    f"a message of {len(value or b''):,} bytes is too large for topic {topic}",
                    op="send",
                    hint=TOO_LARGE,
                ) from error
            if code in (kafka.KafkaError._FATAL, kafka.KafkaError._STATE):
                # The transaction failed before, out of sight. Another one is not begun beside it: the error says why.
                producer.begin_transaction()
            raise


@lru_cache(maxsize=1024)
def _millis(commit_time: str) -> int:
    return int(datetime.fromisoformat(commit_time).timestamp() * 1000)

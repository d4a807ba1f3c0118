"""The broker's state: partitions, producers and their transactions, by the rules of Kafka's own design (KIP-98)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from airflow_parallel_apply.demo.kafka.record_batch import Batch, batches, marker, placed

Place = tuple[str, int]
"""A topic, and the number of one of its partitions."""


class Code(IntEnum):
    """Kafka's own codes of errors."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    TOPIC_ALREADY_EXISTS = 36
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49


@dataclass(slots=True)
class Partition:
    """One partition: its batches, and what is known of their producers."""

    log: list[Batch] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first offset and marker's offset of each transaction that was aborted."""
    open: dict[int, int] = field(default_factory=dict)
    """The first offset of each producer's transaction under way."""
    sequences: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Epoch, next sequence and last offset of each producer."""
    removed: int = 0
    """The offset behind what was removed from the beginning."""

    @property
    def end(self) -> int:
        """The next offset."""
        return self.log[-1].end if self.log else self.removed

    @property
    def stable_end(self) -> int:
        """Readers of what is committed see what lies before it."""
        return min(self.open.values(), default=self.end)


@dataclass(slots=True)
class Transaction:
    """The producer of a transactional id. `places`: those of its transaction under way."""

    producer: int
    epoch: int = -1
    places: set[Place] = field(default_factory=set)


class State:
    """Thread-safe. `default_partitions`: of topics that come with their first use."""

    def __init__(self, *, default_partitions: int = 4) -> None:
        self.changed = threading.Condition()
        self.topics: dict[str, list[Partition]] = {}
        self.settings: dict[str, dict[str, str]] = {}
        """By topic, as they were given when it was made."""
        self._default_partitions = default_partitions
        self._by_id: dict[str, Transaction] = {}
        self._producers = 1000

    def create(self, topic: str, partitions: int, settings: Mapping[str, str] | None = None) -> Code:
        """Make a topic; of -1 partitions: as many as usual."""
        with self.changed:
            if topic in self.topics:
                return Code.TOPIC_ALREADY_EXISTS
            count = partitions if partitions > 0 else self._default_partitions
            self.topics[topic] = [Partition() for _ in range(count)]
            self.settings[topic] = {"cleanup.policy": "delete", **(settings or {})}
        return Code.NONE

    def delete(self, topic: str) -> Code:
        """Forget a topic."""
        with self.changed:
            return Code.UNKNOWN_TOPIC_OR_PARTITION if self.topics.pop(topic, None) is None else Code.NONE

    def find(self, topic: str, partition: int) -> Partition | None:
        """One partition; None where there is none."""
        found = self.topics.get(topic, [])
        return found[partition] if 0 <= partition < len(found) else None

    def begin_producer(self, transactional_id: str) -> tuple[int, int]:
        """Its id and epoch: whoever had them before is fenced, and its open transaction aborted."""
        with self.changed:
            if not transactional_id:
                self._producers += 1
                return self._producers, 0
            if transactional_id not in self._by_id:
                self._producers += 1
                self._by_id[transactional_id] = Transaction(self._producers)
            found = self._by_id[transactional_id]
            found.epoch += 1
            self._end(found, committed=False)
            return found.producer, found.epoch

    def add(self, transactional_id: str, producer: int, epoch: int, places: list[Place]) -> Code:
        """Add partitions to a producer's transaction."""
        with self.changed:
            found = self._by_id.get(transactional_id)
            if found is None or found.producer != producer:
                return Code.INVALID_PRODUCER_ID_MAPPING
            if found.epoch != epoch:
                return Code.INVALID_PRODUCER_EPOCH
            found.places.update(places)
        return Code.NONE

    def end(self, transactional_id: str, producer: int, epoch: int, *, committed: bool) -> Code:
        """End a producer's transaction."""
        with self.changed:
            found = self._by_id.get(transactional_id)
            if found is None or found.producer != producer:
                return Code.INVALID_PRODUCER_ID_MAPPING
            if found.epoch != epoch:
                return Code.INVALID_PRODUCER_EPOCH
            self._end(found, committed=committed)
        return Code.NONE

    def append(self, topic: str, partition: int, data: bytes) -> tuple[Code, int]:
        """Append a request's batches; the first one's offset."""
        with self.changed:
            found = self.find(topic, partition)
            if found is None:
                return Code.UNKNOWN_TOPIC_OR_PARTITION, -1
            first = found.end
            for batch in batches(data):
                code = self._refusal(batch, (topic, partition), found)
                if code is not Code.NONE:
                    return code, -1
                epoch, following, last = found.sequences.get(batch.producer, (-1, 0, -1))
                if batch.producer >= 0 and epoch == batch.epoch and batch.sequence < following:
                    return Code.NONE, last
                if batch.is_transactional:
                    found.open.setdefault(batch.producer, found.end)
                put = placed(batch, found.end)
                found.log.append(put)
                if batch.producer >= 0:
                    found.sequences[batch.producer] = (batch.epoch, batch.sequence + batch.count, put.offset)
            self.changed.notify_all()
            return Code.NONE, first

    def _refusal(self, batch: Batch, place: Place, partition: Partition) -> Code:
        if batch.producer < 0:
            return Code.NONE
        if batch.is_transactional:
            mine = next((one for one in self._by_id.values() if one.producer == batch.producer), None)
            if mine is None or mine.epoch != batch.epoch:
                return Code.INVALID_PRODUCER_EPOCH
            if place not in mine.places:
                return Code.INVALID_TXN_STATE
        epoch, following, _ = partition.sequences.get(batch.producer, (-1, 0, -1))
        expected = following if epoch == batch.epoch else 0
        return Code.OUT_OF_ORDER_SEQUENCE_NUMBER if batch.sequence > expected else Code.NONE

    def _end(self, found: Transaction, *, committed: bool) -> None:
        for topic, number in sorted(found.places):
            partition = self.find(topic, number)
            if partition is None:
                continue
            put = placed(marker(producer=found.producer, epoch=found.epoch, committed=committed), partition.end)
            partition.log.append(put)
            first = partition.open.pop(found.producer, None)
            if first is not None and not committed:
                partition.aborted.append((found.producer, first, put.offset))
        found.places.clear()
        self.changed.notify_all()

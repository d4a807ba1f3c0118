"""Positions as records of a compacted topic of the pipeline: partition 0 has its head, partition 1 + c channel c.

Only the holder of a channel's transactional id, or of that of all channels, writes to the channel's partition; taking a
channel fences both. So behind a take no transaction is open there, and the last committed record is the position. The
head is written under the id of all channels, which every take fences, too: what a take then reads was not changed by
anybody who can still commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import MAX_CHANNELS
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import PATIENCE_SECONDS, library, make_consumer
from airflow_parallel_apply.pipeline.target.kafka.records import read_to_end, removed_records
from airflow_parallel_apply.pipeline.target.kafka.sending import produce

HEAD: Final = 0
PARTITIONS: Final = 1 + MAX_CHANNELS

_NEAR: Final = 16
"""Offsets before a partition's end in which its last record is looked for first."""
_FURTHER: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The record that holds for all positions of a pipeline. `ledger`: the database of its ledger. `format`: that
    of its messages; empty where an earlier version wrote it.
    """

    log_id: str
    routing_digest: str
    channels: int
    generation: int
    ledger: str
    format: str = ""


class Positions:
    """Reads and writes them. Not thread-safe. Errors: librdkafka's own; `Unavailable`; `TargetError` where records were
    removed.
    """

    def __init__(self, address: KafkaAddress, pipeline: str) -> None:
        self._address = address
        self._pipeline = pipeline
        self.topic = address.positions_topic(pipeline)
        self._consumer: Any = None

    def head(self) -> Head | None:
        """None where nothing was laid out."""
        found = self._last([HEAD]).get(HEAD)
        return None if found is None else Head(**found)

    def read(self, channels: Iterable[int]) -> dict[int, Position]:
        """The last committed position of each channel that has one."""
        found = self._last([1 + channel for channel in channels])
        return {place - 1: Position(channel=place - 1, **values) for place, values in sorted(found.items())}

    def write_head(self, producer: Any, head: Head) -> None:
        """Inside the producer's transaction."""
        produce(producer, self.topic, json.dumps(asdict(head)).encode(), self._pipeline.encode(), HEAD, {})

    def write(self, producer: Any, positions: Iterable[Position]) -> None:
        """Inside the producer's transaction."""
        for at in positions:
            value = json.dumps({"seqno": at.seqno, "generation": at.generation, "claim": at.claim})
            key = f"{self._pipeline}/{at.channel}"
            produce(producer, self.topic, value.encode(), key.encode(), 1 + at.channel, {})

    def close(self) -> None:
        """Idempotent."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _last(self, partitions: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        """The last committed record of each partition that has one."""
        if self._consumer is None:
            self._consumer = make_consumer(self._address)
        ends = {place: ends for place in partitions if (ends := self._ends(place)) is not None}
        found: dict[int, Mapping[str, Any]] = {}
        back, wanted = _NEAR, {place for place, (low, high) in ends.items() if high > low}
        while wanted:
            starts = {place: max(ends[place][0], ends[place][1] - back) for place in wanted}
            found |= self._scan(starts)
            wanted = {place for place in wanted - found.keys() if starts[place] > ends[place][0]}
            back *= _FURTHER
        for place, (low, _) in ends.items():
            if low > 0 and place not in found:
                raise removed_records(self.topic, place, op="read positions", instead=START_ELSEWHERE)
        return found

    def _ends(self, place: int) -> tuple[int, int] | None:
        """The first and the next offset of a partition; None where there is none."""
        kafka = library()
        at = kafka.TopicPartition(self.topic, place)
        ends: tuple[int, int] | None
        try:
            ends = self._consumer.get_watermark_offsets(at, timeout=PATIENCE_SECONDS)
        except kafka.KafkaException as error:
            if error.args[0].code() not in _unknown(kafka):
                raise
            # A client that has lost its brokers, or that asked before the topic was made, knows of it once told again.
            known = self._exists(place)
            ends = self._consumer.get_watermark_offsets(at, timeout=PATIENCE_SECONDS) if known else None
        return ends

    def _exists(self, place: int) -> bool:
        """Ask the brokers. Errors: librdkafka's own where they do not answer."""
        found = self._consumer.list_topics(timeout=PATIENCE_SECONDS).topics.get(self.topic)
        return found is not None and place in found.partitions

    def _scan(self, starts: Mapping[int, int]) -> dict[int, Mapping[str, Any]]:
        return {
            message.partition(): json.loads(message.value())
            for message in read_to_end(self._consumer, self.topic, starts)
        }


def _unknown(kafka: Any) -> tuple[int, ...]:
    codes = kafka.KafkaError
    return (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION)

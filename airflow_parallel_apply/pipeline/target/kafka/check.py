"""Finds what keeps a pipeline's tables from going into topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.change import Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, PartitionBy
from airflow_parallel_apply.pipeline.target.kafka.client import PATIENCE_SECONDS, library, make_consumer
from airflow_parallel_apply.pipeline.target.kafka.messages import table_messages
from airflow_parallel_apply.pipeline.target.kafka.positions import PARTITIONS

_finding: Final = partial(new_finding, Side.TARGET)


def findings(
    address: KafkaAddress, pipeline: str, expected: Expectation, counts: Mapping[str, int]
) -> Iterator[Finding]:
    """Compare topics with an expectation. `counts`: partitions by topic. Errors: librdkafka's own."""
    positions = address.positions_topic(pipeline)
    if 0 < counts.get(positions, 0) < 1 + expected.channels:
        yield _finding(
            positions,
            f"topic {positions} has {counts[positions]} partitions, and {expected.channels} channels need "
            f"{1 + expected.channels}",
            note=f"Delete the topic before the first run: the target makes it, with {PARTITIONS} partitions.",
        )
    unbegun = {relation.name for relation in (expected.tables if expected.are_empty else expected.unbegun)}
    for relation in expected.tables:
        for trouble in _troubles(address, relation, expected.channels, counts):
            yield _table(relation, trouble)
        topic = address.topic(relation.name)
        if topic not in counts:
            yield _finding(
                topic,
                f"topic {topic} is missing; the target makes it with its first message",
                severity=Severity.WARNING,
                note="Make it by hand for a number of partitions, or settings, of its own.",
            )
        elif relation.name in unbegun and _has_messages(address, topic, counts[topic]):
            yield _table(relation, f"has a topic {topic} that is not empty")


def _table(relation: Relation, trouble: str) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        side=Side.TARGET,
        where=relation.name,
        what=f"table {relation.name} {trouble}",
        is_table=True,
    )


def _troubles(address: KafkaAddress, relation: Relation, channels: int, counts: Mapping[str, int]) -> Iterator[str]:
    trouble = address.topic_trouble(relation)
    if trouble is not None:
        yield trouble
    if relation.key_indexes and not relation.canonical:
        yield "has a key of which equal values may have several texts: one key would be several messages' keys"
    if not relation.key_indexes and address.tombstones:
        yield "has no key, which a compacted topic (tombstones) needs"
    if relation.replica_identity is ReplicaIdentity.NONE and address.tombstones:
        yield "has no replica identity, so that its deletions are not sent"
    count = counts.get(address.topic(relation.name), address.partitions)
    if address.partition_by is PartitionBy.CHANNEL and 0 < count < channels:
        yield f"has a topic of {count} partitions, and partition_by=channel needs one for each of {channels} channels"
    try:
        table_messages(address, relation, schema_id=lambda subject, schema: 0)  # noqa: ARG005  # nothing is registered
    except ParallelApplyError as error:
        yield f"cannot be encoded: {error.message}"


def _has_messages(address: KafkaAddress, topic: str, count: int) -> bool:
    kafka = library()
    consumer = make_consumer(address)
    try:
        for partition in range(count):
            place = kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=PATIENCE_SECONDS)
            if high > low:
                return True
    finally:
        consumer.close()
    return False

"""Finds what keeps a pipeline's tables from going into topics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.encode.columns.parse import NOT_FINITE
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, ParallelApplyError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, MessageFormat, PartitionBy
from airflow_parallel_apply.pipeline.target.kafka.client import PATIENCE_SECONDS, library, make_consumer
from airflow_parallel_apply.pipeline.target.kafka.messages import table_messages
from airflow_parallel_apply.pipeline.target.kafka.positions import PARTITIONS
from airflow_parallel_apply.pipeline.target.kafka.records import read_to_end
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics

_finding: Final = partial(new_finding, Side.TARGET)


def findings(address: KafkaAddress, pipeline: str, expected: Expectation, topics: Topics) -> Iterator[Finding]:
    """Compare topics with an expectation. Errors: librdkafka's own."""
    counts = topics.counts()
    positions = address.positions_topic(pipeline)
    if 0 < counts.get(positions, 0) < 1 + expected.channels:
        yield _finding(
            positions,
            f"topic {positions} has {counts[positions]} partitions, and {expected.channels} channels need "
            f"{1 + expected.channels}",
            note=f"Delete the topic before the first run: the target makes it, with {PARTITIONS} partitions.",
        )
    if positions in counts and (removal := topics.removal(positions)) is not None:
        setting, keep = removal
        what = f"topic {positions} has {setting}, by which brokers remove positions of an idle pipeline"
        yield _finding(positions, what, note=keep)
    begins = expected.are_empty or expected.are_new
    unbegun = {relation.name for relation in (expected.tables if begins else expected.unbegun)}
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
        elif relation.name in unbegun and has_messages(address, topic, counts[topic]):
            note = (
                "Delete the topic if nobody needs it, or give the pipeline topics of another prefix."
                if begins
                else "Delete the topic if nobody needs it, or exclude the table."
            )
            yield _table(relation, f"has a topic {topic} that is not empty", note=note)
        elif names := retyped_columns(address, relation, counts[topic]):
            yield _table(
                relation,
                f"has messages whose key does not have {', '.join(names)} as the source's text, as text_columns "
                "asks for: a row would have two keys",
                note=f"Take it out of text_columns again. {START_ELSEWHERE}",
            )


def _table(relation: Relation, trouble: str, *, note: str = "") -> Finding:
    return Finding(
        severity=Severity.ERROR,
        side=Side.TARGET,
        where=relation.name,
        what=f"table {relation.name} {trouble}",
        note=note,
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


def retyped_columns(address: KafkaAddress, relation: Relation, count: int) -> list[str]:
    """Columns of a table's key that are to keep the source's text, and do not in the messages that are there. A schema
    registry refuses such a change by itself.
    """
    texts = address.texts(relation.name)
    key = [relation.columns[index] for index in relation.key_indexes]
    left = {column.name: column for column in key if column.name in texts}
    if not left or address.format is MessageFormat.AVRO:
        return []
    found: list[str] = []
    with closing(make_consumer(address)) as consumer:
        for message in read_to_end(consumer, address.topic(relation.name), dict.fromkeys(range(count), 0)):
            if message.key() is None:
                continue
            values = json.loads(message.key())
            # Another column may have been the key then.
            told = {name: _is_source_text(values[name], left[name]) for name in left if name in values}
            found += [name for name, is_text in told.items() if is_text is False]
            left = {name: column for name, column in left.items() if told.get(name) is None}
            if not left:
                break
    return found


def _is_source_text(value: object, column: Column) -> bool | None:
    """Whether a key has a value as the source's text; None where it would be sent so either way."""
    if not isinstance(value, str):
        return False
    match column.value.kind:
        case ValueKind.BYTES:
            return value.startswith("\\x")
        case ValueKind.TIMESTAMP | ValueKind.INSTANT:
            return "T" not in value
        case ValueKind.FLOAT if value in NOT_FINITE:
            return None
        case ValueKind.DECIMAL if column.kind is KeyKind.DECIMAL:
            # Typed it has all digits of its scale, which may have been another, as text none that a key does not need.
            fraction = value.partition(".")[2]
            return (False if fraction.endswith("0") else None) if fraction else True
        case _:
            return True


def has_messages(address: KafkaAddress, topic: str, count: int) -> bool:
    """True if a consumer finds a message; what was aborted is none. Errors: librdkafka's own; `Unavailable`."""
    ends = enumerate(_watermarks(address, topic, count))
    starts = {partition: low for partition, (low, high) in ends if high > low}
    with closing(make_consumer(address)) as consumer:
        return next(read_to_end(consumer, topic, starts), None) is not None


def had_messages(address: KafkaAddress, topic: str, count: int) -> bool:
    """True also of a topic whose messages retention has removed. Errors: librdkafka's own."""
    return any(high > 0 for _, high in _watermarks(address, topic, count))


def _watermarks(address: KafkaAddress, topic: str, count: int) -> list[tuple[int, int]]:
    """The first and the next offset of each partition."""
    places = [library().TopicPartition(topic, partition) for partition in range(count)]
    with closing(make_consumer(address)) as consumer:
        return [consumer.get_watermark_offsets(place, timeout=PATIENCE_SECONDS) for place in places]

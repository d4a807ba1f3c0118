"""Measures sending a history into topics: ours from the log with 1 and 2 channels, beside a plain producer.

Each of ours begins stopped, with the whole history captured and planned, and sends into topics of its own: Spark scans
and encodes, lanes send in transactions with their positions. The plain producer has the very same messages in memory,
encoded, and sends them without a transaction: what librdkafka and the broker take of the time. The broker is the
demonstration's, one process of Python on the same machine; its processor seconds are told apart.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import PipelineConfig, default_slot
from airflow_parallel_apply.pipeline.errors import TargetError
from benchmarks.histories import histories
from benchmarks.lanes import SparkAccess, measure_from_log
from benchmarks.processors import processor_seconds, seconds_of
from benchmarks.settings import BenchSettings
from benchmarks.suite import warm_spark
from benchmarks.world import Database, World, build_world

CHANNELS: Final = (1, 2)
PLAIN: Final = "a plain producer, the same messages, no transaction"
_HISTORY: Final = "uniform"
_WARM_UPS: Final = 2
_LEDGER: Final = "ledger"
_PATIENCE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One way to send, and its measurements: on the clock, and of processors with and without the broker's."""

    what: str
    seconds: tuple[float, ...]
    processor_seconds: float
    broker_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendings:
    """All ways. `value_bytes`: of all messages' values."""

    history: str
    messages: int
    value_bytes: int
    ways: tuple[Sending, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broker:
    address: str
    process_id: int

    @property
    def seconds(self) -> float:
        return seconds_of(self.process_id)


def measure_kafka(directory: Path, settings: BenchSettings, say: Callable[[str], None]) -> Sendings:
    """One history of BENCH_WORKLOAD_CHANGES changes, each way BENCH_REPEATS times."""
    history = histories(settings.workload_changes)[_HISTORY]
    say(f"a history: {history.name}")
    turns = [2] * _WARM_UPS + [channels for _ in range(settings.repeats) for channels in CHANNELS]
    prepared: list[tuple[PipelineConfig, Database]] = []
    with _broker() as broker:

        def prepare(world: World) -> None:
            world.source_server.create_database(_LEDGER)
            for number in range(len(turns)):
                config = replace(world.log, pipeline=f"into_topics_{number}", slot=default_slot(world.log.pipeline))
                url = f"kafka://{broker.address}/bench{number}?staging={directory}/staging"
                database = Database(name=_LEDGER, dsn=url, ledger_dsn=world.source_server.dsn(_LEDGER))
                run.prepare(config, world.source, database.endpoint)
                prepared.append((config, database))

        with (
            build_world(directory / "world", history, repeats=0, captures=False, prepare=prepare) as world,
            warm_spark(directory, max(CHANNELS)) as spark,
        ):
            return _measured(world, broker, spark, turns, prepared, directory, say)


def print_kafka(console: Console, found: Sendings) -> None:
    """A table, and the ratio of each way to the plain producer."""
    size = found.value_bytes / found.messages
    console.print(f"{found.history}: {found.messages:,} messages, values of {size:,.0f} bytes", highlight=False)
    plain = next(median(way.seconds) for way in found.ways if way.what == PLAIN)
    table = Table(box=None)
    for heading in ("what", "seconds", "changes/s", "× plain producer", "cpu s", "the broker's", "all"):
        table.add_column(heading, justify="left" if heading in ("what", "all") else "right")
    for way in found.ways:
        seconds = median(way.seconds)
        table.add_row(
            way.what,
            f"{seconds:.2f}",
            f"{found.messages / seconds:,.0f}",
            f"{plain / seconds:.2f}",
            f"{way.processor_seconds:.2f}",
            f"{way.broker_seconds:.2f}",
            " ".join(f"{one:.2f}" for one in way.seconds),
        )
    console.print(table)


def _measured(
    world: World,
    broker: _Broker,
    spark: SparkAccess,
    turns: Sequence[int],
    prepared: Sequence[tuple[PipelineConfig, Database]],
    directory: Path,
    say: Callable[[str], None],
) -> Sendings:
    def spent() -> float:
        # The broker is a child of this process.
        return processor_seconds(directory) - broker.seconds

    found: dict[str, list[tuple[float, float, float]]] = {}
    messages: list[Message] = []
    plain = count()
    for number, (channels, (config, database)) in enumerate(zip(turns, prepared, strict=True)):
        of_broker = broker.seconds
        measured = measure_from_log(replace(world, log=config), database, channels, spark, meter=spent)
        if number < _WARM_UPS:
            say(f"warming up: {measured.seconds:.2f} s")
            continue
        what = f"ours from the log, {channels} channel{'s' if channels > 1 else ''}"
        one = measured.seconds, measured.processor_seconds, broker.seconds - of_broker
        found.setdefault(what, []).append(one)
        say(f"{what}: {one[0]:.2f} s, {one[1]:.2f} of processors")
        if not messages:
            messages = list(_messages(broker.address, f"bench{number}.public."))
            if len(messages) != world.history.changes:
                raise TargetError(f"{len(messages)} messages of {world.history.changes} changes", op="bench")
        if channels == CHANNELS[-1]:
            one = _sent_plainly(broker, messages, f"plain{next(plain)}")
            found.setdefault(PLAIN, []).append(one)
            say(f"{PLAIN}: {one[0]:.2f} s, {one[1]:.2f} of processors")
    return Sendings(
        history=world.history.name,
        messages=len(messages),
        value_bytes=sum(len(message.value() or b"") for message in messages),
        ways=tuple(
            Sending(
                what=what,
                seconds=tuple(seconds for seconds, _, _ in measured),
                processor_seconds=median(of_ours for _, of_ours, _ in measured),
                broker_seconds=median(of_broker for _, _, of_broker in measured),
            )
            for what, measured in found.items()
        ),
    )


def _sent_plainly(broker: _Broker, messages: Sequence[Message], prefix: str) -> tuple[float, float, float]:
    """Seconds on the clock, of this process, and of the broker, for sending messages to topics of a prefix."""
    topics = {message.topic(): f"{prefix}.{message.topic()}" for message in messages}
    producer = Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 5, "compression.type": "lz4", "acks": "all",
         "queue.buffering.max.messages": len(messages) + 1}
    )  # fmt: skip
    for topic in topics.values():
        producer.list_topics(topic, timeout=_PATIENCE_SECONDS)
    began, mine, of_broker = time.monotonic(), time.process_time(), broker.seconds
    for number, message in enumerate(messages):
        producer.produce(
            topics[message.topic()],
            value=message.value(),
            key=message.key(),
            timestamp=message.timestamp()[1],
            headers=message.headers(),
        )
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(_PATIENCE_SECONDS):
        raise TargetError(f"{left} messages of the plain producer were not taken", op="bench")
    return time.monotonic() - began, time.process_time() - mine, broker.seconds - of_broker


def _messages(address: str, prefix: str) -> Iterator[Message]:
    """Those of all topics of a prefix that are committed."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        topics = consumer.list_topics(timeout=_PATIENCE_SECONDS).topics
        left = {(name, number) for name in topics if name.startswith(prefix) for number in topics[name].partitions}
        consumer.assign([TopicPartition(*place, 0) for place in left])
        while left:
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
                elif not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()


@contextmanager
def _broker() -> Iterator[_Broker]:
    """A broker in a process of its own, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_serve, args=(its,), daemon=True)
    process.start()
    try:
        yield _Broker(address=mine.recv(), process_id=process.pid or 0)
    finally:
        mine.send(None)
        process.join()


def _serve(asked: Connection) -> None:
    with KafkaBroker() as broker:
        asked.send(broker.address)
        asked.recv()

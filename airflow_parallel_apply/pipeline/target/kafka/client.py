"""librdkafka's clients as the target uses them, and its errors as ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    OwnershipLost,
    ParallelApplyError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.target.kafka.address import TRANSACTION_MS, KafkaAddress

_logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
"""How long a call waits for the brokers."""

_INITIALIZERS: Final = 16

TOO_LARGE: Final = "Raise max.message.bytes of the topic, and message.max.bytes in the connection's extra or the URL."
TOO_LONG: Final = (
    "Give the connection a longer transaction.timeout.ms, which brokers allow up to their transaction.max.timeout.ms. "
    "Smaller units (unit_max_bytes, epoch_max_changes) take less time, but for a large transaction of the source."
)
AWAY: Final = "Check that the brokers run and can be reached from here. Then clear the task, or run again."


def library() -> Any:
    """The driver. Errors: `ConfigurationError` where it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise ConfigurationError(
            "confluent-kafka is not installed here", hint="pip install 'airflow-provider-parallel-apply[kafka]'"
        ) from error
    return confluent_kafka


def make_consumer(address: KafkaAddress) -> Any:
    """A consumer of what is committed; it belongs to no group."""
    options = {
        "group.id": f"{address.prefix}.parallel_apply",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
    }
    return library().Consumer({**address.client_options, **options}, logger=_logger)


def make_admin(address: KafkaAddress, heard: Callable[[Any], None]) -> Any:
    """A client for topics. `heard`: gets the errors that no call has, when the client is polled."""
    return library().admin.AdminClient({**address.client_options, "error_cb": heard}, logger=_logger)


def fence(address: KafkaAddress, ids: Iterable[str]) -> dict[str, Any]:
    """A producer for each transactional id. Whoever had one before can send nothing any more, and what he had not
    committed is aborted when this returns.
    """
    library()
    names = list(ids)
    with ThreadPoolExecutor(min(len(names), _INITIALIZERS)) as pool:
        return dict(zip(names, pool.map(lambda name: _initialized(address, name), names), strict=True))


@lru_cache(maxsize=1)
def _producer() -> Any:
    """The type of our producers. `undelivered`: the first message that no broker took, behind its error; the number of
    such messages is all that a commit tells.
    """
    return type("Producer", (library().Producer,), {"__slots__": ("undelivered",)})


def _initialized(address: KafkaAddress, transactional_id: str) -> Any:
    undelivered: list[tuple[Any, Any]] = []

    def hear(error: Any, message: Any) -> None:
        # Calls nothing: of a producer that was fenced the library has set its exception by now.
        if not undelivered:
            undelivered[:] = [(error, message)]

    options = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_MS,
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
        "delivery.report.only.error": True,
        "on_delivery": hear,
    }
    producer = _producer()({**options, **address.client_options}, logger=_logger)
    producer.undelivered = undelivered
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


@lru_cache(maxsize=1)
def refusals() -> frozenset[int]:
    """The errors that only another configuration helps against, of clients or of brokers."""
    codes = library().KafkaError
    return frozenset(
        {
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            codes.SASL_AUTHENTICATION_FAILED,
            codes.UNSUPPORTED_SASL_MECHANISM,
            codes.ILLEGAL_SASL_STATE,
            codes._AUTHENTICATION,
            codes._SSL,
            codes.INVALID_TRANSACTION_TIMEOUT,
            codes.INVALID_PARTITIONS,
            codes.INVALID_REPLICATION_FACTOR,
            codes.INVALID_CONFIG,
            codes.POLICY_VIOLATION,
            codes.TOPIC_EXCEPTION,
            codes.UNSUPPORTED_VERSION,
            codes._UNSUPPORTED_FEATURE,
            codes._INVALID_ARG,
        }
    )


@contextmanager
def kafka_errors(
    op: str, *, pipeline: str | None = None, channel: int | None = None, transaction_ms: int | None = None
) -> Iterator[None]:
    """Turn librdkafka's errors into ours: `OwnershipLost` where somebody else took the transactional id over.
    `transaction_ms`: how long brokers keep a transaction open that is made inside.
    """
    kafka = library()
    began = time.monotonic()
    try:
        yield
    except kafka.KafkaException as error:
        found = _translated(kafka.KafkaError, error.args[0], op, pipeline, channel)
        spent_ms = (time.monotonic() - began) * 1000
        if isinstance(found, OwnershipLost) and transaction_ms is not None and spent_ms >= transaction_ms:
            # The broker ends what is too old in the same way as it ends a former holder.
            found = Unavailable(
                f"sending took {spent_ms / 1000:,.0f} s, longer than transaction.timeout.ms, and the broker aborted it",
                op=op,
                pipeline=pipeline,
                channel=channel,
                hint=TOO_LONG,
            )
        raise found from error


def _translated(codes: Any, error: Any, op: str, pipeline: str | None, channel: int | None) -> ParallelApplyError:
    text = " ".join(error.str().split())
    places: dict[str, Any] = {"op": op, "pipeline": pipeline, "channel": channel}
    if error.code() in (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH):
        return OwnershipLost("a newer claim took the channel", **places)
    if error.code() in (codes.MSG_SIZE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE, codes.INVALID_RECORD):
        hint = f"{TOO_LARGE} A compacted topic takes no message without a key."
        return TargetError(f"the broker refuses a message: {text}", hint=hint, **places)
    if error.code() == codes.INVALID_TIMESTAMP:
        return TargetError(
            f"the broker refuses a message for its time, which is its commit's: {text}",
            hint="Raise message.timestamp.before.max.ms or message.timestamp.after.max.ms of the topic.",
            **places,
        )
    if error.code() in refusals():
        return ConfigurationError(text, hint="Check the connection.", **places)
    return Unavailable(text, hint=AWAY, **places)

"""librdkafka's clients as the target uses them, and its errors as ours."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    OwnershipLost,
    ParallelApplyError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress

_logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
"""How long a call waits for the brokers."""

_TRANSACTION_MS: Final = 300_000
"""How long a transaction may be open before the broker aborts it."""

_INITIALIZERS: Final = 16

TOO_LARGE: Final = "Raise max.message.bytes of the topic, and message.max.bytes in the connection's extra or the URL."
_AWAY: Final = "Check that the brokers run and can be reached from here. Then clear the task, or run again."


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


def make_admin(address: KafkaAddress) -> Any:
    """A client for topics."""
    return library().admin.AdminClient(address.client_options, logger=_logger)


def fence(address: KafkaAddress, ids: Iterable[str]) -> dict[str, Any]:
    """A producer for each transactional id. Whoever had one before can send nothing any more, and what he had not
    committed is aborted when this returns.
    """
    library()
    names = list(ids)
    with ThreadPoolExecutor(min(len(names), _INITIALIZERS)) as pool:
        return dict(zip(names, pool.map(lambda name: _initialized(address, name), names), strict=True))


def _initialized(address: KafkaAddress, transactional_id: str) -> Any:
    options = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": _TRANSACTION_MS,
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    }
    producer = library().Producer({**options, **address.client_options}, logger=_logger)
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


@contextmanager
def kafka_errors(op: str, *, pipeline: str | None = None, channel: int | None = None) -> Iterator[None]:
    """Turn librdkafka's errors into ours: `OwnershipLost` where somebody else took the transactional id over."""
    kafka = library()
    try:
        yield
    except kafka.KafkaException as error:
        raise _translated(kafka.KafkaError, error.args[0], op, pipeline, channel) from error


def _translated(codes: Any, error: Any, op: str, pipeline: str | None, channel: int | None) -> ParallelApplyError:
    text = " ".join(error.str().split())
    if error.code() in (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH):
        return OwnershipLost("a newer claim took the channel", op=op, pipeline=pipeline, channel=channel)
    if error.code() in (codes.MSG_SIZE_TOO_LARGE, codes.INVALID_RECORD):
        return TargetError(
            f"the broker refuses a message: {text}",
            op=op,
            pipeline=pipeline,
            channel=channel,
            hint=f"{TOO_LARGE} A compacted topic takes no message without a key.",
        )
    refused = (
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        codes.SASL_AUTHENTICATION_FAILED,
        codes._AUTHENTICATION,
        codes.INVALID_TRANSACTION_TIMEOUT,
        codes._INVALID_ARG,
    )
    if error.code() in refused:
        return ConfigurationError(text, op=op, pipeline=pipeline, channel=channel, hint="Check the connection.")
    return Unavailable(text, op=op, pipeline=pipeline, channel=channel, hint=_AWAY)

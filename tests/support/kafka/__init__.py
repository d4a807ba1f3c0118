"""A Kafka broker of one node for tests, whose transactions fence and isolate; those of librdkafka's mock do not."""

from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.reading import Read, committed

__all__ = ["KafkaBroker", "Read", "committed"]

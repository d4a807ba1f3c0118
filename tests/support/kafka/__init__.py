"""A Kafka broker of one node for tests, whose transactions fence and isolate; those of librdkafka's mock do not."""

from tests.support.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]

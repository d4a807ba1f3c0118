"""Kafka as a target: every change of a table as a message of its topic, in transactions that move the positions."""

from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.target import KafkaTarget

__all__ = ["KafkaAddress", "KafkaTarget"]

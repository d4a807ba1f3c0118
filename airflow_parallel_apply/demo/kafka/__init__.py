"""A small Kafka broker for the demonstration and the tests: one node, in memory, whose transactions fence and isolate.

It keeps Kafka's wire protocol and its rules for transactions (KIP-98) as far as a pipeline and its consumers need them.
It is no Kafka: it replicates nothing, compacts nothing, forgets everything when its process ends, aborts no transaction
for its age, knows no groups of consumers, and asks nobody for a password.
"""

from airflow_parallel_apply.demo.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]

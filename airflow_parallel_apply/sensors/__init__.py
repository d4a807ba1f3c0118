"""What a scheduled run waits for before it starts, and what any DAG may wait for in a queue."""

from airflow_parallel_apply.sensors.changes import ChangesAvailableSensor
from airflow_parallel_apply.sensors.queue import QueueEmptySensor, QueueStatsSensor

__all__ = ["ChangesAvailableSensor", "QueueEmptySensor", "QueueStatsSensor"]

"""Sensors: for a scheduled run that waits for changes before it starts, and for any DAG that waits for a queue."""

from airflow_parallel_apply.sensors.changes import ChangesAvailableSensor
from airflow_parallel_apply.sensors.queue import QueueEmptySensor, QueueStatsSensor

__all__ = ["ChangesAvailableSensor", "QueueEmptySensor", "QueueStatsSensor"]

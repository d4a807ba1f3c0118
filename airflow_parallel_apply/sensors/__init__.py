"""What a scheduled run waits for before it starts."""

from airflow_parallel_apply.sensors.changes import ChangesAvailableSensor

__all__ = ["ChangesAvailableSensor"]

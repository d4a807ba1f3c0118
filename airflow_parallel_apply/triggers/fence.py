"""The path by which tasks that an earlier release deferred name `LeaseTrigger`."""

from airflow_parallel_apply.triggers.lease import LeaseTrigger as FenceTrigger

__all__ = ["FenceTrigger"]

"""Triggers, by which tasks wait without holding a slot. Their paths and arguments are a wire format."""

from airflow_parallel_apply.triggers.changes import ChangesTrigger
from airflow_parallel_apply.triggers.lease import LeaseTrigger
from airflow_parallel_apply.triggers.queue import QueueEmptyTrigger, QueueStatsTrigger
from airflow_parallel_apply.triggers.source_time import SourceTimeTrigger

__all__ = ["ChangesTrigger", "LeaseTrigger", "QueueEmptyTrigger", "QueueStatsTrigger", "SourceTimeTrigger"]

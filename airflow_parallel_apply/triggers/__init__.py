"""What tasks wait for without a slot in hand. Paths and arguments are wire format."""

from airflow_parallel_apply.triggers.changes import ChangesTrigger
from airflow_parallel_apply.triggers.fence import FenceTrigger
from airflow_parallel_apply.triggers.queue import QueueEmptyTrigger, QueueStatsTrigger
from airflow_parallel_apply.triggers.source_time import SourceTimeTrigger

__all__ = ["ChangesTrigger", "FenceTrigger", "QueueEmptyTrigger", "QueueStatsTrigger", "SourceTimeTrigger"]

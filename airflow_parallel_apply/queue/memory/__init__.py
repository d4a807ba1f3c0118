"""The queue in this process's memory, for many threads: fine-grained locks, nothing lost that was acknowledged."""

from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from airflow_parallel_apply.queue.memory.data import DataDirectory, DataLimits, check_data
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.memory.log import Disk, SegmentLimits

__all__ = ["DataDirectory", "DataLimits", "Disk", "Engine", "MemoryQueue", "SegmentLimits", "check_data"]

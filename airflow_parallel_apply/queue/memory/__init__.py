"""The queue in this process's memory, for many threads: fine-grained locks, nothing lost that was acknowledged."""

from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from airflow_parallel_apply.queue.memory.engine import Engine

__all__ = ["Engine", "MemoryQueue"]

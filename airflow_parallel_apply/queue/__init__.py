"""The queue: what workers pull from and the coordinator steers by. Its words, its protocol, and a way to open one."""

from airflow_parallel_apply.queue.connect import open_queue
from airflow_parallel_apply.queue.model import (
    Change,
    DependencyError,
    Failure,
    FailureReason,
    Insert,
    Json,
    QueueCorrupt,
    QueueError,
    QueueFull,
    QueueMisconfigured,
    QueueStats,
    QueueUnavailable,
    Task,
    TaskId,
    TaskRef,
)
from airflow_parallel_apply.queue.protocol import Queue

__all__ = [
    "Change",
    "DependencyError",
    "Failure",
    "FailureReason",
    "Insert",
    "Json",
    "Queue",
    "QueueCorrupt",
    "QueueError",
    "QueueFull",
    "QueueMisconfigured",
    "QueueStats",
    "QueueUnavailable",
    "Task",
    "TaskId",
    "TaskRef",
    "open_queue",
]

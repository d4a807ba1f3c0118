"""The queue: what workers pull from and the coordinator steers by. Its words, its protocol, and a way to open one."""

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
from airflow_parallel_apply.queue.open import open_queue
from airflow_parallel_apply.queue.protocol import Queue
from airflow_parallel_apply.queue.worker import Done, Held, LeaseLost, RetryPolicy, Work, Worker

__all__ = [
    "Change",
    "DependencyError",
    "Done",
    "Failure",
    "FailureReason",
    "Held",
    "Insert",
    "Json",
    "LeaseLost",
    "Queue",
    "QueueCorrupt",
    "QueueError",
    "QueueFull",
    "QueueMisconfigured",
    "QueueStats",
    "QueueUnavailable",
    "RetryPolicy",
    "Task",
    "TaskId",
    "TaskRef",
    "Work",
    "Worker",
    "open_queue",
]

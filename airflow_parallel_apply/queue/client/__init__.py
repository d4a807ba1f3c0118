"""Clients of the queue's service, for threads and for coroutines, on one implementation of the calls."""

from airflow_parallel_apply.queue.client.address import queue_address
from airflow_parallel_apply.queue.client.asynchronous import AsyncQueueClient
from airflow_parallel_apply.queue.client.blocking import QueueClient

__all__ = ["AsyncQueueClient", "QueueClient", "queue_address"]

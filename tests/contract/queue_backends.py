"""The backends that the queue's contract holds for: another one is another line of `BACKENDS`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest

from airflow_parallel_apply.queue import Queue
from airflow_parallel_apply.queue.client import QueueClient
from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, Engine, MemoryQueue, SegmentLimits
from airflow_parallel_apply.queue.postgres import PostgresQueue, migrate
from tests.support.queue_service import AwaitedQueue, ServedQueue

Open = Callable[[], Queue]
"""Opens one more client of the same, at first empty, queues."""

_numbers = itertools.count()


def postgres(request: pytest.FixtureRequest) -> Open:
    dsn = request.getfixturevalue("target_server").dsn()
    schema = f"queue_{next(_numbers)}"
    migrate(dsn, schema)
    return lambda: PostgresQueue(dsn, schema=schema)


def memory(request: pytest.FixtureRequest) -> Open:
    engine = Engine()
    return lambda: MemoryQueue(engine)


def logged(request: pytest.FixtureRequest) -> Open:
    """With segments and snapshots so small that both turn over all the time."""
    limits = DataLimits(segment=SegmentLimits(max_bytes=20_000, max_items=50), snapshot_after_bytes=60_000)
    data = DataDirectory(request.getfixturevalue("tmp_path") / "queue", limits=limits)
    request.addfinalizer(data.close)
    return lambda: MemoryQueue(data.engine)


def service(request: pytest.FixtureRequest) -> Open:
    served = ServedQueue(request.getfixturevalue("tmp_path") / "queue")
    request.addfinalizer(served.stop)
    return lambda: QueueClient(served.url)


def asynchronous(request: pytest.FixtureRequest) -> Open:
    served = ServedQueue(request.getfixturevalue("tmp_path") / "queue")
    request.addfinalizer(served.stop)
    return lambda: AwaitedQueue(served.url)


BACKENDS: Mapping[str, Callable[[pytest.FixtureRequest], Open]] = {
    "logged": logged,
    "memory": memory,
    "postgres": postgres,
    "service": service,
    "service, asynchronous": asynchronous,
}

"""The backends that the queue's contract holds for: another one is another line of `BACKENDS`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest

from airflow_parallel_apply.queue import Queue
from airflow_parallel_apply.queue.memory import Engine, MemoryQueue
from airflow_parallel_apply.queue.postgres import PostgresQueue, migrate

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


BACKENDS: Mapping[str, Callable[[pytest.FixtureRequest], Open]] = {
    "memory": memory,
    "postgres": postgres,
}

"""What the contract suites are parametrised by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_parallel_apply.queue import Queue
from tests.contract.queue_backends import BACKENDS, Open


@pytest.fixture(params=sorted(BACKENDS))
def open_client(request: pytest.FixtureRequest) -> Iterator[Open]:
    open_one = BACKENDS[request.param](request)
    opened: list[Queue] = []

    def open_and_keep() -> Queue:
        opened.append(open_one())
        return opened[-1]

    yield open_and_keep
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(open_client: Open) -> Queue:
    return open_client()

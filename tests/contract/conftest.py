"""Parameters of the contract suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.queue import Queue
from tests.contract.queue_backends import BACKENDS, Open
from tests.support.generation import Generation
from tests.support.queue_service import ServedQueue
from tests.support.variants import GATED
from tests.support.written_log import TABLE, make_log


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


@pytest.fixture
def log_url(tmp_path: Path, target_dsn: str) -> str:
    url = str(tmp_path / "log")
    make_log(url)
    with psycopg.connect(target_dsn) as connection:
        connection.execute(TABLE)
    return url


@pytest.fixture(params=["in the target", pytest.param("behind a service", marks=GATED)])
def steered_by(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueEndpoint | None]:
    """Yield a pipeline's queue; None: in the target. The queue's own suites prove that a service is one."""
    if request.param == "in the target":
        yield None
        return
    served = ServedQueue(tmp_path / "queue")
    yield QueueEndpoint(conn_id="queue", dsn=served.url)
    served.stop()


@pytest.fixture
def make(target_dsn: str, log_url: str, steered_by: QueueEndpoint | None) -> Iterator[Callable[..., Generation]]:
    made: list[Generation] = []

    def make_generation(
        channels: int = 4,
        limits: FeedLimits | None = None,
        *,
        fed: bool = True,
        consistency: Consistency = Consistency.CHANNEL,
        protocol: EpochProtocol = EpochProtocol.LEADER_MERGE,
    ) -> Generation:
        made.append(
            Generation(
                target_dsn,
                log_url,
                channels,
                limits=limits,
                queue=steered_by,
                fed=fed,
                consistency=consistency,
                protocol=protocol,
            )
        )
        return made[-1]

    yield make_generation
    for generation in made:
        generation.queue.close()
        generation.session.close()

"""A router in the test's process, for the store `memory`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import RouterEndpoint
from airflow_parallel_apply.pipeline.store.protocol import StreamBranch
from airflow_parallel_apply.pipeline.stream.address import router_address
from airflow_parallel_apply.pipeline.stream.client import StreamClient
from airflow_parallel_apply.router.feeding.feedings import FeedingLimits, Feedings
from airflow_parallel_apply.router.service.logs import LogPaths
from airflow_parallel_apply.router.service.process import RouterProcess, RouterServing

_PATIENCE: Final = timedelta(seconds=2)
"""As a task of Spark's has it."""


class MemoryRouter:
    """One that runs. `endpoint`: what pipelines name. It serves every log in `directory` by name, and any by path."""

    def __init__(self, directory: Path, limits: FeedingLimits | None = None) -> None:
        self._held: Feedings | None = None

        def answerer(logs: object) -> Feedings:
            self._held = Feedings(logs, limits or FeedingLimits(), directory)
            return self._held

        self._process = RouterProcess(RouterServing(logs=LogPaths(within=directory, anywhere=True)), answerer)
        self.endpoint = RouterEndpoint(conn_id="router", url=self._process.url)

    @property
    def held(self) -> Feedings:
        """The feedings that it holds."""
        assert self._held is not None
        return self._held

    def stop(self) -> None:
        self._process.stop()


@contextmanager
def memory_router(directory: Path, limits: FeedingLimits | None = None) -> Iterator[MemoryRouter]:
    router = MemoryRouter(directory, limits)
    try:
        yield router
    finally:
        router.stop()


def streamed(branch: StreamBranch) -> list[pa.RecordBatch]:
    """The rows of a branch, as Spark's tasks get them: one after the other for each ticket."""
    client = StreamClient(router_address(branch.address), patience=_PATIENCE)
    try:
        return [batch for ticket in branch.tickets for batch in client.stream(ticket)]
    finally:
        client.close()

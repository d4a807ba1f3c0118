"""Triggers that wait for queues: behind a service each is a call that waits, without a thread; a database is polled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_parallel_apply.hooks import connections
from airflow_parallel_apply.hooks.queue import QueueCounts
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured
from airflow_parallel_apply.queue.open import open_queue
from airflow_parallel_apply.service.address import is_service

if TYPE_CHECKING:
    from airflow_parallel_apply.queue.client import AsyncQueueClient
    from airflow_parallel_apply.queue.protocol import Queue

_SLICE: Final = timedelta(minutes=1)
"""A wait for emptiness is asked for anew so often."""


class _QueueTrigger(BaseTrigger):
    """Base: one event, once `_wait` returns. A queue that is away is asked again; how long is for the task to say.

    Path and arguments are wire format: deferred tasks of older releases name them.

    :param queue_conn_id: connection to the queue
    :param queues: names of queues
    :param prefix: beginnings of names of queues
    :param poll_seconds: between two looks, and before a queue that was away is asked again
    """

    def __init__(
        self, *, queue_conn_id: str, queues: Sequence[str], prefix: Sequence[str], poll_seconds: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it without annotations
        self.queue_conn_id = queue_conn_id
        self.queues = list(queues)
        self.prefix = list(prefix)
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        return (
            f"{kind.__module__}.{kind.__qualname__}",
            {
                "queue_conn_id": self.queue_conn_id,
                "queues": self.queues,
                "prefix": self.prefix,
                "poll_seconds": self.poll_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """`met` with the counts, or `error` when a person has to act."""
        while True:
            try:
                async with _opened(self.queue_conn_id, self.poll_seconds) as queue:
                    counts = await self._wait(queue)
                yield TriggerEvent({"status": "met", "counts": counts.to_json()})
                return
            except QueueMisconfigured as error:
                yield TriggerEvent({"status": "error", "message": str(error)})
                return
            except (QueueError, ParallelApplyError) as error:
                # Airflow reports a connection as missing while its API server fails; the task has just used it.
                self.log.warning("the queue cannot be asked now, trying again: %s", error)
            await asyncio.sleep(self.poll_seconds)

    async def _wait(self, queue: _Watched) -> QueueCounts:
        raise NotImplementedError


class QueueEmptyTrigger(_QueueTrigger):
    """Waits until none of the queues has a task."""

    async def _wait(self, queue: _Watched) -> QueueCounts:
        while not await queue.wait_empty(self.queues, self.prefix):
            continue
        return QueueCounts()


class QueueStatsTrigger(_QueueTrigger):
    """Looks every `poll_seconds` until a count of the queues lies within its bounds.

    :param measure: which count of `QueueCounts`
    :param at_least: its lower bound; None: none
    :param at_most: its upper bound; None: none
    """

    def __init__(self, *, measure: str, at_least: int | None, at_most: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.measure = measure
        self.at_least = at_least
        self.at_most = at_most

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        bounds = {"measure": self.measure, "at_least": self.at_least, "at_most": self.at_most}
        return path, {**arguments, **bounds}

    async def _wait(self, queue: _Watched) -> QueueCounts:
        while True:
            counts = await queue.counts(self.queues, self.prefix)
            if counts.lies_within(self.measure, at_least=self.at_least, at_most=self.at_most):
                return counts
            await asyncio.sleep(self.poll_seconds)


class _Watched(Protocol):
    """A queue as a trigger needs it."""

    async def counts(self, queues: Sequence[str], prefix: Sequence[str]) -> QueueCounts: ...

    async def wait_empty(self, queues: Sequence[str], prefix: Sequence[str]) -> bool:
        """Wait for a while; True if the queues are empty then."""
        ...


class _Service:
    def __init__(self, client: AsyncQueueClient) -> None:
        self._client = client

    async def counts(self, queues: Sequence[str], prefix: Sequence[str]) -> QueueCounts:
        return QueueCounts.of(await self._client.queue_stats(exact=queues, prefix=prefix))

    async def wait_empty(self, queues: Sequence[str], prefix: Sequence[str]) -> bool:
        return await self._client.wait_empty(exact=queues, prefix=prefix, timeout=_SLICE)


class _Database:
    """In threads, each for one look: triggers share a few of them."""

    def __init__(self, queue: Queue, poll_seconds: float) -> None:
        self._queue = queue
        self._poll_seconds = poll_seconds

    async def counts(self, queues: Sequence[str], prefix: Sequence[str]) -> QueueCounts:
        return QueueCounts.of(await asyncio.to_thread(self._queue.queue_stats, exact=queues, prefix=prefix))

    async def wait_empty(self, queues: Sequence[str], prefix: Sequence[str]) -> bool:
        if not (await self.counts(queues, prefix)).size:
            return True
        await asyncio.sleep(self._poll_seconds)
        return False


@asynccontextmanager
async def _opened(queue_conn_id: str, poll_seconds: float) -> AsyncIterator[_Watched]:
    endpoint = await asyncio.to_thread(connections.queue, queue_conn_id, parameter="queue_conn_id")
    if is_service(endpoint.dsn):
        from airflow_parallel_apply.queue.client import AsyncQueueClient

        async with AsyncQueueClient(endpoint.dsn) as client:
            yield _Service(client)
        return
    queue = open_queue(endpoint.dsn)
    try:
        yield _Database(queue, poll_seconds)
    finally:
        await asyncio.to_thread(queue.close)

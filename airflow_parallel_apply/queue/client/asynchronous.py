"""The queue's protocol over the service, for coroutines: the same calls, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from airflow_parallel_apply.queue.client.address import ServiceAddress
from airflow_parallel_apply.queue.client.blocking import DEFAULT_DEADLINE
from airflow_parallel_apply.queue.client.calls import (
    REPLIES,
    STREAMED,
    Calls,
    Pause,
    Request,
    Steps,
    path_of,
    translated,
)
from airflow_parallel_apply.queue.client.options import CHANNEL_OPTIONS, credentials_of
from airflow_parallel_apply.queue.model import Change, Insert, QueueError, QueueStats, Task, TaskId, TaskRef

_Result = TypeVar("_Result")


class AsyncQueueClient:
    """`async with AsyncQueueClient(url) as queue`, in one event loop. The promises and errors are those of `Queue`."""

    def __init__(
        self, url: str, *, deadline: timedelta = DEFAULT_DEADLINE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = ServiceAddress.parse(url)
        self._calls = Calls(deadline=deadline, clock=clock)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncQueueClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def try_claim(self, queues: Sequence[str], *, claimant: str, lease: timedelta) -> Task | None:
        return await self._drive(self._calls.try_claim(queues, claimant, lease))

    async def claim(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        timeout: timedelta,
        wake: Sequence[str] = (),
    ) -> Task | None:
        return await self._drive(self._calls.claim(queues, claimant, lease, timeout, wake))

    async def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        return await self._drive(self._calls.modify(claimant, insert, change, delete, depend))

    async def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        return await self._drive(self._calls.renew(task.ref, claimant, lease))

    async def tasks(
        self,
        queue: str,
        *,
        claimant: str | None = None,
        limit: int | None = None,
        ids: Sequence[TaskId] = (),
        after: Task | None = None,
        omit_values: bool = False,
    ) -> tuple[Task, ...]:
        return await self._drive(self._calls.tasks(queue, claimant, limit, ids, after, omit_values))

    async def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        return await self._drive(self._calls.queue_stats(prefix, exact, limit))

    async def wait_empty(
        self,
        *,
        prefix: Sequence[str] = (),
        exact: Sequence[str] = (),
        timeout: timedelta,
    ) -> bool:
        return await self._drive(self._calls.wait_empty(prefix, exact, timeout))

    async def snapshot(self) -> str:
        """Let the service take a snapshot now: its file's name."""
        return await self._drive(self._calls.snapshot())

    async def close(self) -> None:
        """Calls under way end with `QueueError`."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def _drive(self, steps: Steps[_Result]) -> _Result:
        try:
            step = next(steps)
            while True:
                try:
                    reply = await self._perform(step)
                except (QueueError, ValueError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as end:
            result: _Result = end.value
            return result

    async def _perform(self, step: Request | Pause) -> Any:
        self._check_open()
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            call = self._method(step.method)(
                step.message, timeout=step.seconds, metadata=self._address.metadata, wait_for_ready=True
            )
            return [page async for page in call] if step.method in STREAMED else await call
        except grpc.RpcError as error:
            self._check_open()
            raise translated(error, self._address.target) from error
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # gRPC cancels what is under way when its channel is closed.
            self._check_open()
            raise

    def _method(self, name: str) -> Callable[..., Any]:
        if self._channel is None:
            self._channel = self._connect()
        make = self._channel.unary_stream if name in STREAMED else self._channel.unary_unary
        made: Callable[..., Any] = make(
            path_of(name), request_serializer=_to_bytes, response_deserializer=REPLIES[name].FromString
        )
        return made

    def _connect(self) -> grpc.aio.Channel:
        if self._address.tls:
            return grpc.aio.secure_channel(self._address.target, credentials_of(self._address), options=CHANNEL_OPTIONS)
        return grpc.aio.insecure_channel(self._address.target, options=CHANNEL_OPTIONS)

    def _check_open(self) -> None:
        if self._closed:
            raise QueueError("this queue was closed")


def _to_bytes(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content

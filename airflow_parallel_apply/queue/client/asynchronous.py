"""The queue's protocol over the service, for coroutines: the same calls, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import grpc
import grpc.aio

from airflow_parallel_apply.queue.client.address import queue_address
from airflow_parallel_apply.queue.client.calls import (
    STREAMED,
    Calls,
    Pause,
    Request,
    Steps,
    methods_of,
    translated,
)
from airflow_parallel_apply.queue.client.options import CHANNEL_OPTIONS, credentials_of
from airflow_parallel_apply.queue.model import QueueError
from airflow_parallel_apply.queue.open import DEFAULT_DEADLINE

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


def _awaited(
    steps: Callable[Concatenate[Calls, _Arguments], Steps[_Result]],
) -> Callable[Concatenate[AsyncQueueClient, _Arguments], Coroutine[Any, Any, _Result]]:
    """The method of a client that makes these steps."""

    async def call(self: AsyncQueueClient, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        return await self._drive(steps(self._calls, *arguments, **options))

    update_wrapper(call, steps)
    return call


class AsyncQueueClient:
    """`async with AsyncQueueClient(url) as queue`, in one event loop. The promises and errors are those of `Queue`."""

    def __init__(
        self, url: str, *, deadline: timedelta = DEFAULT_DEADLINE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = queue_address(url)
        self._calls = Calls(deadline=deadline, clock=clock)
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, Callable[..., Any]] = {}
        self._closed = False

    async def __aenter__(self) -> AsyncQueueClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    claim_many = _awaited(Calls.claim_many)
    try_claim = _awaited(Calls.try_claim)
    claim = _awaited(Calls.claim)
    modify = _awaited(Calls.modify)
    renew = _awaited(Calls.renew)
    tasks = _awaited(Calls.tasks)
    queue_stats = _awaited(Calls.queue_stats)
    wait_empty = _awaited(Calls.wait_empty)
    snapshot = _awaited(Calls.snapshot)

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
                step.message, timeout=step.seconds, metadata=self._address.metadata, wait_for_ready=step.waits
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
            self._methods = methods_of(self._channel)
        return self._methods[name]

    def _connect(self) -> grpc.aio.Channel:
        if self._address.tls:
            return grpc.aio.secure_channel(self._address.target, credentials_of(self._address), options=CHANNEL_OPTIONS)
        return grpc.aio.insecure_channel(self._address.target, options=CHANNEL_OPTIONS)

    def _check_open(self) -> None:
        if self._closed:
            raise QueueError("this queue was closed")

"""Handles calls of the queue's service over gRPC: bytes become messages, tokens are checked, errors become statuses.

```
status               means
INVALID_ARGUMENT     no state of the queue could make the call right: message, limits, names, values
RESOURCE_EXHAUSTED   there is no room for it, nothing was done
UNAUTHENTICATED      no token, or a wrong one
UNAVAILABLE          stopping, or the log cannot be written: nobody knows of a modify whether it was done
```

A refused modify is an answer, not a status.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from airflow_parallel_apply.queue.model import QueueError, QueueFull, QueueUnavailable
from airflow_parallel_apply.queue.service.metrics import Call, CallMetrics

Context: TypeAlias = Any
"""`grpc.aio.ServicerContext`: gRPC has no types."""
_Answer = Callable[[Any, Context], Awaitable[Message]]
_Answers = Callable[[Any], AsyncIterator[Message]]


class Stopping(QueueUnavailable):
    """The service is stopping; its successor may answer."""


class Handlers:
    """Makes handlers that admit a call, parse its request, and count it under its status. Requests come as bytes, so
    that a malformed one gets a clear answer from us.

    `token`: what callers have to present; None admits everybody. While `is_stopping`, calls are sent away.
    """

    def __init__(self, *, token: str | None, metrics: CallMetrics, is_stopping: Callable[[], bool]) -> None:
        self._token = token
        self._metrics = metrics
        self._is_stopping = is_stopping
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    def unary(self, name: str, request: type[Message], answer: _Answer) -> grpc.RpcMethodHandler:
        """Handle calls with one reply."""

        async def handle(content: bytes, context: Context) -> Any:
            with self._call(name) as call:
                try:
                    self._admit(context)
                    return await answer(_parsed(request, content), context)
                except (QueueError, ValueError) as error:
                    await _abort(context, error, call.ended)

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=_to_bytes)

    def stream(self, name: str, request: type[Message], answers: _Answers) -> grpc.RpcMethodHandler:
        """Handle calls with several replies."""

        async def handle(content: bytes, context: Context) -> AsyncIterator[Message]:
            with self._call(name) as call:
                try:
                    self._admit(context)
                    async for reply in answers(_parsed(request, content)):
                        yield reply
                except (QueueError, ValueError) as error:
                    await _abort(context, error, call.ended)

        return grpc.unary_stream_rpc_method_handler(handle, response_serializer=_to_bytes)

    @contextmanager
    def _call(self, name: str) -> Iterator[Call]:
        self._under_way += 1
        self._idle.clear()
        try:
            with self._metrics.call(name) as call:
                yield call
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _admit(self, context: Context) -> None:
        if self._token is not None:
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            if not hmac.compare_digest(str(given).encode(), f"Bearer {self._token}".encode()):
                raise _Unauthenticated("the queue's service wants a token, and got none or a wrong one")
        if self._is_stopping():
            raise Stopping("the queue's service is stopping")


class _Unauthenticated(QueueError):
    """The call came without the token, or with a wrong one."""


def _parsed(kind: type[Message], content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise ValueError(f"these bytes are no {kind.DESCRIPTOR.name}") from error


def _to_bytes(message: Message) -> bytes:
    content: bytes = message.SerializeToString()
    return content


async def _abort(context: Context, error: Exception, ended: Callable[[str], None]) -> NoReturn:
    if isinstance(error, _Unauthenticated):
        code = grpc.StatusCode.UNAUTHENTICATED
    elif isinstance(error, QueueFull):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    elif isinstance(error, ValueError):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, QueueUnavailable):
        code = grpc.StatusCode.UNAVAILABLE
    else:
        code = grpc.StatusCode.FAILED_PRECONDITION
    ended(code.name)
    await context.abort(code, str(error)[:2000])
    raise error

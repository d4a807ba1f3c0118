"""The queue's protocol over the service, for threads: any number of them share a client and its connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import grpc

from airflow_parallel_apply.queue.client.address import ServiceAddress
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

DEFAULT_DEADLINE: Final = timedelta(seconds=30)

_Result = TypeVar("_Result")


class QueueClient:
    """Connects at the first call, and again by itself. `deadline`: of each call, beside what it waits for tasks."""

    def __init__(
        self, url: str, *, deadline: timedelta = DEFAULT_DEADLINE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = ServiceAddress.parse(url)
        self._calls = Calls(deadline=deadline, clock=clock)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Callable[..., Any]] = {}

    def try_claim(self, queues: Sequence[str], *, claimant: str, lease: timedelta) -> Task | None:
        """A claim whose answer was lost is held by nobody who knows of it, until its lease ends."""
        return self._drive(self._calls.try_claim(queues, claimant, lease))

    def claim(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        timeout: timedelta,
        wake: Sequence[str] = (),
    ) -> Task | None:
        return self._drive(self._calls.claim(queues, claimant, lease, timeout, wake))

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> tuple[Task, ...]:
        """Also `ValueError`, for a call that no state of the queue could make right, or that exceeds a limit."""
        return self._drive(self._calls.modify(claimant, insert, change, delete, depend))

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Task:
        return self._drive(self._calls.renew(task.ref, claimant, lease))

    def tasks(
        self,
        queue: str,
        *,
        claimant: str | None = None,
        limit: int | None = None,
        ids: Sequence[TaskId] = (),
        after: Task | None = None,
        omit_values: bool = False,
    ) -> tuple[Task, ...]:
        return self._drive(self._calls.tasks(queue, claimant, limit, ids, after, omit_values))

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> tuple[QueueStats, ...]:
        return self._drive(self._calls.queue_stats(prefix, exact, limit))

    def wait_empty(self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), timeout: timedelta) -> bool:
        return self._drive(self._calls.wait_empty(prefix, exact, timeout))

    def snapshot(self) -> str:
        """Let the service take a snapshot now: its file's name."""
        return self._drive(self._calls.snapshot())

    def close(self) -> None:
        """Calls that wait in other threads end with `QueueError` at once."""
        self._closed.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    def _drive(self, steps: Steps[_Result]) -> _Result:
        try:
            step = next(steps)
            while True:
                try:
                    reply = self._perform(step)
                except (QueueError, ValueError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as end:
            result: _Result = end.value
            return result

    def _perform(self, step: Request | Pause) -> Any:
        if isinstance(step, Pause):
            self._closed.wait(step.seconds)
            return None
        try:
            call = self._method(step.method)
            reply = call(step.message, timeout=step.seconds, metadata=self._address.metadata, wait_for_ready=True)
            return list(reply) if step.method in STREAMED else reply
        except grpc.RpcError as error:
            self._check_open()
            raise translated(error, self._address.target) from error
        except ValueError as error:
            # gRPC's word for a channel that was closed under a call.
            self._check_open()
            raise QueueError(f"the queue's service cannot be called: {error}") from error

    def _method(self, name: str) -> Callable[..., Any]:
        with self._lock:
            self._check_open()
            if self._channel is None:
                self._channel = self._connect()
                self._methods = {method: _callable(self._channel, method) for method in REPLIES}
            return self._methods[name]

    def _connect(self) -> grpc.Channel:
        if self._address.tls:
            return grpc.secure_channel(self._address.target, credentials_of(self._address), options=CHANNEL_OPTIONS)
        return grpc.insecure_channel(self._address.target, options=CHANNEL_OPTIONS)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise QueueError("this queue was closed")


def _callable(channel: grpc.Channel, method: str) -> Callable[..., Any]:
    make = channel.unary_stream if method in STREAMED else channel.unary_unary
    made: Callable[..., Any] = make(
        path_of(method), request_serializer=_to_bytes, response_deserializer=REPLIES[method].FromString
    )
    return made


def _to_bytes(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content

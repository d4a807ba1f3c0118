"""The queue's protocol over the service, for threads: any number of them share a client and its connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import grpc

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


def _driven(
    steps: Callable[Concatenate[Calls, _Arguments], Steps[_Result]],
) -> Callable[Concatenate[QueueClient, _Arguments], _Result]:
    """The method of a client that makes these steps: one signature for both clients."""

    def call(self: QueueClient, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        return self._drive(steps(self._calls, *arguments, **options))

    update_wrapper(call, steps)
    return call


class QueueClient:
    """Connects at the first call, and again by itself. `deadline`: of each call, beside what it waits for tasks."""

    def __init__(
        self, url: str, *, deadline: timedelta = DEFAULT_DEADLINE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = queue_address(url)
        self._calls = Calls(deadline=deadline, clock=clock)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Callable[..., Any]] = {}

    claim_many = _driven(Calls.claim_many)
    try_claim = _driven(Calls.try_claim)
    claim = _driven(Calls.claim)
    modify = _driven(Calls.modify)
    renew = _driven(Calls.renew)
    tasks = _driven(Calls.tasks)
    queue_stats = _driven(Calls.queue_stats)
    wait_empty = _driven(Calls.wait_empty)
    snapshot = _driven(Calls.snapshot)

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
            reply = call(step.message, timeout=step.seconds, metadata=self._address.metadata, wait_for_ready=step.waits)
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
                self._methods = methods_of(self._channel)
            return self._methods[name]

    def _connect(self) -> grpc.Channel:
        if self._address.tls:
            return grpc.secure_channel(self._address.target, credentials_of(self._address), options=CHANNEL_OPTIONS)
        return grpc.insecure_channel(self._address.target, options=CHANNEL_OPTIONS)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise QueueError("this queue was closed")

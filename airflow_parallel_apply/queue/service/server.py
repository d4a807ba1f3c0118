"""The calls of the queue's service: one event loop that asks the engine, and waits for tasks and for the disk.

The engine never waits, so small calls and pages are made in the loop itself; large calls go to one thread, long
listings to others, so that the loop goes on meanwhile. One more thread syncs the log for all calls that wrote since its
last sync.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from airflow_parallel_apply.queue.arguments import check_names, parsed
from airflow_parallel_apply.queue.memory import DataDirectory
from airflow_parallel_apply.queue.memory.listing import PAGE_TASKS
from airflow_parallel_apply.queue.model import DependencyError, QueueError
from airflow_parallel_apply.queue.service import queue_pb2 as pb
from airflow_parallel_apply.queue.service import wire
from airflow_parallel_apply.queue.service.handlers import Context, Handlers, Stopping
from airflow_parallel_apply.queue.service.limits import ServiceLimits
from airflow_parallel_apply.queue.service.metrics import CallMetrics
from airflow_parallel_apply.queue.service.sync import Syncs

SERVICE: Final = "parallel_apply.queue.v1.Queue"

_SMALL_ENTRIES: Final = 100
"""Calls for so many tasks cost the loop less than a change of threads would."""
_PAGE_BYTES: Final = 2**20

_logger: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Service:
    """Serves a data directory from the running event loop. The caller starts and stops the gRPC server around it."""

    def __init__(self, data: DataDirectory, *, limits: ServiceLimits, token: str | None, metrics: CallMetrics) -> None:
        self._data = data
        self._engine = data.engine
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopping = asyncio.Event()
        self._handlers = Handlers(token=token, metrics=metrics, is_stopping=self._stopping.is_set)
        self._health = health.aio.HealthServicer()
        self._syncs = Syncs(data.log)
        # One: more of them would wait for each other, for the queues' locks and for Python's.
        self._large = ThreadPoolExecutor(1, thread_name_prefix="queue calls")

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the calls, and health, which needs no token."""
        unary, stream = self._handlers.unary, self._handlers.stream
        handlers = {
            "Claim": unary("Claim", pb.ClaimRequest, self._claim),
            "Modify": unary("Modify", pb.ModifyRequest, self._modify),
            "Renew": unary("Renew", pb.RenewRequest, self._renew),
            "Tasks": stream("Tasks", pb.TasksRequest, self._tasks),
            "Stats": unary("Stats", pb.StatsRequest, self._stats),
            "WaitEmpty": unary("WaitEmpty", pb.WaitEmptyRequest, self._wait_empty),
            "Snapshot": unary("Snapshot", pb.SnapshotRequest, self._snapshot),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    async def ready(self) -> None:
        """Say so to those who ask for health."""
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Send those who wait away; calls under way end, and are durable then."""
        await self._health.enter_graceful_shutdown()
        self._stopping.set()

    async def idle(self) -> None:
        """Wait until no call of the queue is under way; that somebody watches the health is none."""
        await self._handlers.idle()

    async def _claim(self, request: pb.ClaimRequest, context: Context) -> Message:
        limit = request.limit or 1
        self._limits.check_entries(max(limit, len(request.queues) + len(request.wake)))
        queues, wake = list(request.queues), list(request.wake)
        claimant, lease = request.claimant, wire.duration_from_wire(request.lease)

        def claim_now() -> pb.ClaimReply:
            claimed = self._engine.claim_now(queues, claimant=claimant, lease=lease, limit=limit)
            return pb.ClaimReply(tasks=map(wire.task_to_wire, claimed))

        reply = await self._called(claim_now, limit)
        if not reply.tasks and request.wait > 0:
            event = asyncio.Event()
            left = self._timer(request.wait)
            with self._engine.watches.watch([*queues, *wake], self._waker(event)) as watch:
                steps = self._engine.claim_steps(
                    watch,
                    queues,
                    claimant=claimant,
                    lease=lease,
                    # In the loop: who waited begins with few, where many came at once.
                    limit=min(limit, _SMALL_ENTRIES),
                    wake=wake,
                    seconds_left=left,
                )
                claimed = await self._wait(event, steps, context)
                reply = pb.ClaimReply(tasks=map(wire.task_to_wire, claimed), woken=not claimed and left() > 0)
        return await self._settled(reply)

    async def _modify(self, request: pb.ModifyRequest, _: Context) -> Message:
        count = len(request.insert) + len(request.change) + len(request.delete) + len(request.depend)
        self._limits.check_entries(count)
        return await self._settled(await self._called(lambda: self._modified(request), count))

    async def _renew(self, request: pb.RenewRequest, _: Context) -> Message:
        ref, lease = wire.ref_from_wire(request.ref), wire.duration_from_wire(request.lease)
        try:
            renewed = self._engine.renew(ref, claimant=request.claimant, lease=lease)
        except DependencyError as error:
            return await self._settled(pb.ModifyReply(refused=wire.refused_to_wire(error)))
        return await self._settled(pb.ModifyReply(tasks=[wire.task_to_wire(renewed)]))

    async def _stats(self, request: pb.StatsRequest, _: Context) -> Message:
        self._limits.check_entries(len(request.prefix) + len(request.exact))
        found = await asyncio.to_thread(
            self._engine.listing.queue_stats,
            prefix=list(request.prefix),
            exact=list(request.exact),
            limit=_limit(request),
        )
        return wire.stats_to_wire(found)

    async def _wait_empty(self, request: pb.WaitEmptyRequest, context: Context) -> Message:
        self._limits.check_entries(len(request.prefix) + len(request.exact))
        event = asyncio.Event()
        with self._engine.watches.watch(None, self._waker(event)) as watch:
            steps = self._engine.empty_steps(
                watch, list(request.prefix), list(request.exact), self._timer(request.wait)
            )
            empty = await self._wait(event, steps, context)
        await self._syncs.wait(self._data.log.position)
        return pb.WaitEmptyReply(empty=empty)

    async def _snapshot(self, _: pb.SnapshotRequest, __: Context) -> Message:
        path = await asyncio.to_thread(self._data.snapshot)
        return pb.SnapshotReply(name=path.name)

    async def _tasks(self, request: pb.TasksRequest) -> AsyncIterator[Message]:
        self._limits.check_entries(len(request.ids))
        check_names([request.queue])
        claimant, limit = request.claimant if request.HasField("claimant") else None, _limit(request)
        tasks = self._engine.listing.tasks(
            request.queue,
            claimant=claimant,
            ids=[wire.id_from_wire(task_id) for task_id in request.ids],
            after=wire.task_from_wire(request.after, value=None) if request.HasField("after") else None,
            limit=limit,
        )
        left = math.inf if limit is None else limit
        # Few tasks in a thread of their own would hold up the loop longer, by Python's lock. To find a claimant's, or
        # some by their ids, takes as long as the queue or the list is.
        is_small = left <= _SMALL_ENTRIES and claimant is None and len(request.ids) <= _SMALL_ENTRIES
        while left > 0:
            next_page = partial(_page, tasks, not request.omit_values)
            page = next_page() if is_small else await asyncio.to_thread(next_page)
            if page is None:
                return
            # What is listed is durable, as far as the disk lets it be.
            with suppress(QueueError):
                await self._syncs.wait(self._data.log.position)
            yield page
            left -= len(page.tasks)

    def _modified(self, request: pb.ModifyRequest) -> pb.ModifyReply:
        insert = [wire.insert_from_wire(entry) for entry in request.insert]
        change = [wire.change_from_wire(entry) for entry in request.change]
        for text in (*(entry.value for entry in insert), *(entry.value for entry in change)):
            self._limits.check_value(text)
            _check_json(text)
        try:
            done = self._engine.modify(
                claimant=request.claimant,
                insert=insert,
                change=change,
                delete=[wire.ref_from_wire(ref) for ref in request.delete],
                depend=[wire.ref_from_wire(ref) for ref in request.depend],
            )
        except DependencyError as error:
            return pb.ModifyReply(refused=wire.refused_to_wire(error))
        return wire.modified_to_wire(done, change_count=len(request.change))

    async def _called(self, call: Callable[[], _Result], entry_count: int) -> _Result:
        """In the loop, or a large one in the thread for those."""
        if entry_count <= _SMALL_ENTRIES:
            return call()
        return await self._loop.run_in_executor(self._large, call)

    async def _settled(self, reply: Message) -> Message:
        """The reply, when what it rests on is durable: a refusal, too."""
        await self._syncs.wait(self._data.log.position)
        return reply

    async def _wait(self, event: asyncio.Event, steps: Generator[float, None, _Result], context: Context) -> _Result:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                if self._stopping.is_set():
                    raise Stopping("the queue's service is stopping")
                event.clear()
                try:
                    seconds = next(steps)
                except StopIteration as end:
                    result: _Result = end.value
                    return result
                heard = asyncio.ensure_future(event.wait())
                try:
                    await asyncio.wait((heard, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    heard.cancel()
                if context.cancelled():
                    raise asyncio.CancelledError
        finally:
            stopping.cancel()

    def _waker(self, event: asyncio.Event) -> Callable[[], None]:
        def wake() -> None:
            if threading.get_ident() == self._loop_thread:
                event.set()
            else:
                self._loop.call_soon_threadsafe(event.set)

        return wake

    def _timer(self, wait: int) -> Callable[[], float]:
        seconds = min(wire.duration_from_wire(wait), self._limits.max_wait).total_seconds()
        deadline = time.monotonic() + seconds
        return lambda: deadline - time.monotonic()


def _page(listed: Any, with_values: bool) -> pb.TasksReply | None:
    """The next tasks, of about a megabyte at most; None when there are no more."""
    found, size = [], 0
    for task in islice(listed, PAGE_TASKS):
        found.append(wire.task_to_wire(task, with_value=with_values))
        size += len(task.value)
        if with_values and size > _PAGE_BYTES:
            break
    return pb.TasksReply(tasks=found) if found else None


def _limit(request: pb.TasksRequest | pb.StatsRequest) -> int | None:
    if not request.HasField("limit"):
        return None
    if request.limit < 0:
        raise ValueError(f"a limit is not negative: {request.limit}")
    return request.limit


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


_STRICT: Final = json.JSONDecoder(parse_constant=_no_constant)


def _check_json(text: str) -> None:
    """Raise unless the text is JSON: whoever reads the task must be able to read its value."""
    try:
        parsed(_STRICT, text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a task's value must be JSON: {error}") from error

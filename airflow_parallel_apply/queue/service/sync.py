"""Lets coroutines wait for the log: one thread syncs for all who came since it began its last sync."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from airflow_parallel_apply.queue.memory.log import Log
from airflow_parallel_apply.queue.model import QueueError


class Syncs:
    """Syncs the log for the calls of one event loop; everything but `_sync` runs in that loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="queue sync")
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._running = False

    async def wait(self, position: int) -> None:
        """Wait until that position of the log is durable. Errors: `QueueUnavailable`."""
        if self._log.synced_position >= position:
            return
        done = self._loop.create_future()
        self._waiting.append((position, done))
        if not self._running:
            self._running = True
            # Behind the calls that the loop has in hand already.
            self._loop.call_soon(self._begin)
        await done

    def _begin(self) -> None:
        self._thread.submit(self._sync)

    def _sync(self) -> None:
        """In the thread."""
        error = None
        try:
            self._log.wait(self._log.position)
        except QueueError as refused:
            error = refused
        self._loop.call_soon_threadsafe(self._synced, error)

    def _synced(self, error: QueueError | None) -> None:
        durable = self._log.synced_position
        waited, self._waiting = self._waiting, []
        for position, done in waited:
            if done.done():
                # Its call was cancelled.
                continue
            if position <= durable:
                done.set_result(None)
            elif error is not None:
                done.set_exception(error)
            else:
                self._waiting.append((position, done))
        if self._waiting:
            self._begin()
        else:
            self._running = False

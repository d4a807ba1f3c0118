"""Coroutines wait for the log together: each is told when its change is durable, or that nobody knows."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from airflow_parallel_apply.queue import QueueUnavailable
from airflow_parallel_apply.queue.memory import Disk, SegmentLimits
from airflow_parallel_apply.queue.memory.log import Log
from airflow_parallel_apply.queue.service.sync import Syncs


class Gate:
    """A disk whose syncs stand still until it is opened."""

    def __init__(self, directory: Path) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.error: OSError | None = None
        self.sync_count = 0
        # A new log syncs its first bytes.
        self.opened.set()
        self.log = Log(
            directory,
            segment=1,
            position=0,
            limits=SegmentLimits(),
            disk=Disk(sync=self._sync),
            on_rotated=lambda: None,
        )
        self.opened.clear()
        self.entered.clear()
        self.sync_count = 0

    def _sync(self, descriptor: int) -> None:
        self.entered.set()
        assert self.opened.wait(120)
        if self.error is not None:
            raise self.error
        os.fdatasync(descriptor)
        self.sync_count += 1


def waiting(gate: Gate, syncs: Syncs, count: int) -> list[asyncio.Future[None]]:
    return [asyncio.ensure_future(syncs.wait(gate.log.append((), ()))) for _ in range(count)]


def test_who_comes_while_a_sync_runs_is_told_by_the_next_one_all_together(tmp_path: Path) -> None:
    async def come() -> None:
        gate = Gate(tmp_path)
        syncs = Syncs(gate.log)
        first = waiting(gate, syncs, 1)
        assert await asyncio.to_thread(gate.entered.wait, 120)
        others = waiting(gate, syncs, 10)
        others[3].cancel()
        await asyncio.sleep(0)
        assert not any(one.done() for one in [*first, *others[:3], *others[4:]])
        gate.opened.set()
        done, _ = await asyncio.wait([*first, *others], timeout=120)
        assert len(done) == 11
        assert [one for one in done if one.cancelled()] == [others[3]]
        assert gate.sync_count == 2
        assert gate.log.synced_position == 11
        # Durable already: no sync, no wait.
        await syncs.wait(11)
        assert gate.sync_count == 2

    asyncio.run(come())


def test_after_a_failed_sync_all_who_wait_are_told_and_so_is_who_comes_later(tmp_path: Path) -> None:
    async def come() -> None:
        gate = Gate(tmp_path)
        syncs = Syncs(gate.log)
        found = waiting(gate, syncs, 1)
        assert await asyncio.to_thread(gate.entered.wait, 120)
        found += waiting(gate, syncs, 5)
        gate.error = OSError(errno.EIO, "Input/output error")
        gate.opened.set()
        errors = await asyncio.wait_for(asyncio.gather(*found, return_exceptions=True), 120)
        assert [type(one) for one in errors] == [QueueUnavailable] * 6
        with pytest.raises(QueueUnavailable):
            await syncs.wait(6)

    asyncio.run(come())

"""A data directory on a disk that refuses."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.queue import (
    Insert,
    QueueError,
    QueueFull,
    QueueUnavailable,
    Task,
    TaskRef,
)
from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, Disk, MemoryQueue, SegmentLimits
from tests.support.queue_data import BY_HAND, put, values_in
from tests.support.queue_service import until

LEASE = timedelta(minutes=5)


class FaultyDisk:
    """Has room for so many more bytes; then it writes what fits, and refuses."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.sync_count = 0
        self.pause: threading.Event | None = None

    def write(self, descriptor: int, content: bytes, offset: int) -> int:
        if self.write_error is not None:
            raise self.write_error
        if self.room is None:
            return os.pwrite(descriptor, content, offset)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.pwrite(descriptor, content[: self.room], offset)
        self.room -= written
        return written

    def sync(self, descriptor: int) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        self.sync_count += 1
        if self.pause is not None:
            assert self.pause.wait(120)
        os.fdatasync(descriptor)

    @property
    def calls(self) -> Disk:
        return Disk(write=self.write, sync=self.sync)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def faulty(directory: Path) -> Iterator[tuple[MemoryQueue, FaultyDisk]]:
    disk = FaultyDisk()
    data = DataDirectory(directory, limits=BY_HAND, disk=disk.calls)
    yield MemoryQueue(data.engine), disk
    disk.room = disk.sync_error = None
    with suppress(QueueUnavailable):
        data.close()


def test_on_a_full_disk_a_modify_does_nothing_reads_go_on_and_room_mends_it(
    faulty: tuple[MemoryQueue, FaultyDisk], directory: Path
) -> None:
    queue, disk = faulty
    (kept,) = put(queue, 0)
    for room in (0, 1, 20, 60):
        disk.room = room
        with pytest.raises(QueueFull, match="No space left on device; nothing was done"):
            queue.modify(claimant="a", delete=[kept.ref], insert=[Insert(queue="new", value="x" * 100)])
        with pytest.raises(QueueFull):
            queue.try_claim(["q"], claimant="a", lease=LEASE)
        assert queue.tasks("q", limit=1) == (kept,)
        assert [row.queue for row in queue.queue_stats()] == ["q"]
        disk.room = None
        put(queue, room + 1)
    # As a kill would leave it: the files as they are now.
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    assert values_in(copy) == [0, 1, 2, 21, 61]


def test_on_a_disk_that_fills_while_several_queues_are_claimed_from_what_was_claimed_is_returned(
    faulty: tuple[MemoryQueue, FaultyDisk],
) -> None:
    queue, disk = faulty
    names = ["a", "b", "c"]
    for name in names:
        queue.modify(claimant="x", insert=[Insert(queue=name, value="x" * 100)])
    disk.room = 300
    claimed = queue.claim_many(names, claimant="x", lease=LEASE, limit=3)
    assert 1 <= len(claimed) < 3
    held = {task.queue for name in names for task in queue.tasks(name, limit=1) if task.claimant is not None}
    assert held == {task.queue for task in claimed}
    with pytest.raises(QueueFull):
        queue.claim_many(names, claimant="x", lease=LEASE, limit=3)


def test_a_disk_that_cannot_be_written_is_not_told_to_be_full(faulty: tuple[MemoryQueue, FaultyDisk]) -> None:
    queue, disk = faulty
    disk.write_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(QueueFull, match=r"cannot be written: .*Input/output error; nothing was done$"):
        put(queue, 0)
    disk.write_error = None
    put(queue, 0)


def test_a_disk_that_is_full_when_the_log_turns_over_loses_nothing(
    faulty: tuple[MemoryQueue, FaultyDisk], directory: Path
) -> None:
    queue, disk = faulty
    for value in range(5):
        put(queue, value)
    disk.room = 0
    with pytest.raises(QueueFull):
        put(queue, "refused")
    disk.room = None
    put(queue, 5)
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    assert values_in(copy) == list(range(6))


def test_after_a_failed_sync_nothing_is_acknowledged_any_more_and_reads_go_on(
    faulty: tuple[MemoryQueue, FaultyDisk], directory: Path
) -> None:
    queue, disk = faulty
    put(queue, 0)
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(QueueUnavailable, match="Input/output error"):
        put(queue, 1)
    disk.sync_error = None
    with pytest.raises(QueueUnavailable, match="start again"):
        put(queue, 2)
    assert {task.value for task in queue.tasks("q")} >= {0}
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    assert values_in(copy) in ([0], [0, 1])


def applied(queue: MemoryQueue) -> list[Task]:
    """Changes that are applied, durable or not."""
    return list(queue._engine.listing.tasks("q"))


def test_one_sync_serves_all_that_wrote_meanwhile(faulty: tuple[MemoryQueue, FaultyDisk]) -> None:
    queue, disk = faulty
    disk.sync_count = 0
    disk.pause = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        putting = [pool.submit(put, queue, 0)]
        until(lambda: disk.sync_count == 1)
        # The first one syncs, and stands still; the others write meanwhile.
        putting += [pool.submit(put, queue, value) for value in range(1, 4)]
        until(lambda: len(applied(queue)) == 4)
        disk.pause.set()
        for done in putting:
            done.result(timeout=120)
    assert disk.sync_count == 2


def test_a_refusal_is_told_only_when_what_it_rests_on_is_durable(
    faulty: tuple[MemoryQueue, FaultyDisk],
) -> None:
    """Else a worker would take a task for done that a crash brings back."""
    queue, disk = faulty
    (task,) = put(queue, 0)
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(QueueUnavailable):
        queue.modify(claimant="a", delete=[task.ref])
    with pytest.raises(QueueUnavailable):
        queue.modify(claimant="a", delete=[TaskRef(task_id=task.task_id, version=0)])


def put_until_refused(queue: MemoryQueue) -> Iterator[Task]:
    while True:
        try:
            yield from put(queue, "x" * 3000)
        except QueueFull:
            return


def test_a_real_file_system_that_is_full(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        data = DataDirectory(mount / "queue", limits=DataLimits(segment=SegmentLimits(max_bytes=50_000)))
        queue = MemoryQueue(data.engine)
        done = list(put_until_refused(queue))
        assert 20 < len(done) < 200
        assert len(queue.tasks("q")) == len(done)
        with pytest.raises(QueueError):
            data.snapshot()
        copy = tmp_path / "copy"
        shutil.copytree(mount / "queue", copy)
        assert len(values_in(copy)) == len(done)
        subprocess.run(["mount", "-o", "remount,size=8m", str(mount)], check=True)
        put(queue, "x" * 3000)
        data.snapshot()
        data.close()
        assert len(values_in(mount / "queue")) == len(done) + 1
    finally:
        subprocess.run(["umount", str(mount)], check=True)

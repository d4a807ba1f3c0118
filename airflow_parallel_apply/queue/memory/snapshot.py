"""Snapshots: all tasks in one file, taken while the queue serves.

The log turns to a new segment, N; then the queues are walked, a page under one lock at a time. A task that changes
meanwhile may be met before or after its change, or not at all, but its change is in segment N or later, as a final
state: snapshot N, then the log from N on, is the present. The file gets its name only when the log is durable up to
what the walk may have met, so no crash leaves half of a modify.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.memory.frames import HEADER_BYTES, FrameFile, Kind, encode_frame, encode_header
from airflow_parallel_apply.queue.memory.listing import PAGE_TASKS
from airflow_parallel_apply.queue.memory.log import Log, private
from airflow_parallel_apply.queue.memory.records import decode_change, encode_change
from airflow_parallel_apply.queue.model import QueueCorrupt, Task

SNAPSHOT_PATTERN: Final = "snapshot-*.tasks"
UNFINISHED_PATTERN: Final = "snapshot-*.unfinished"

_FRAME_CHARACTERS: Final = 2**20
"""Values of about a megabyte go into one frame: it is put together in memory, and Python's lock is held meanwhile."""

_FOOTER: Final = struct.Struct("<Q")
"""The count of tasks; these eight bytes end a snapshot; no change that has a task is so short."""


def snapshot_path(directory: Path, number: int) -> Path:
    """The path of the snapshot that precedes segment `number`."""
    return directory / f"snapshot-{number:012d}.tasks"


def take_snapshot(engine: Engine, log: Log, directory: Path) -> Path:
    """Write all tasks down. Errors: `OSError`, `QueueError`; nothing but an unfinished file is left then, if that."""
    number = log.rotate()
    path = snapshot_path(directory, number)
    unfinished = path.with_suffix(".unfinished")
    try:
        with open(unfinished, "wb", opener=private) as file:
            file.write(encode_header(Kind.SNAPSHOT, number, 1))
            count = 0
            for position, page in enumerate(_pages(engine), start=1):
                file.write(encode_frame(position, 0, encode_change(page, ())))
                count += len(page)
            file.write(encode_frame(0, 0, _FOOTER.pack(count)))
            file.flush()
            log.disk.sync(file.fileno())
        log.wait(log.position)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    log.disk.sync_names(directory)
    return path


def read_snapshot(path: Path) -> dict[int, Task]:
    """The tasks of a snapshot, which is whole, by the numbers of their ids. Errors: `QueueCorrupt`, with the place."""
    file = FrameFile.read(path, Kind.SNAPSHOT)
    if file is None:
        raise QueueCorrupt(f"{path} at byte 0: too short for a snapshot")
    tasks: dict[int, Task] = {}
    count, end = 0, HEADER_BYTES
    for frame in file.frames():
        end = frame.end
        if len(frame.payload) == _FOOTER.size:
            if _FOOTER.unpack(frame.payload)[0] != count or frame.end != len(file.content):
                break
            return tasks
        puts = decode_change(frame.payload).puts
        count += len(puts)
        tasks.update((task.task_id.int, task) for task in puts)
    raise QueueCorrupt(f"{path} at byte {end}: the snapshot is damaged")


def _pages(engine: Engine) -> Iterator[list[Task]]:
    for name in engine.task_queues.names():
        yield from _batches(engine.listing.tasks(name))


def _batches(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    batch: list[Task] = []
    characters = 0
    for task in tasks:
        batch.append(task)
        characters += len(task.value)
        if len(batch) == PAGE_TASKS or characters >= _FRAME_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

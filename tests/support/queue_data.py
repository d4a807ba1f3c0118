"""A queue's data directory in a test's hand: small segments, no snapshot but those that are asked for."""

from __future__ import annotations

from pathlib import Path

from airflow_parallel_apply.queue import Insert, Task
from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, MemoryQueue, SegmentLimits

BY_HAND = DataLimits(segment=SegmentLimits(max_items=5), snapshot_after_bytes=2**40)


def put(queue: MemoryQueue, *values: object) -> tuple[Task, ...]:
    return queue.modify(claimant="maker", insert=[Insert(queue="q", value=value) for value in values])


def values_in(directory: Path) -> list[object]:
    data = DataDirectory(directory, limits=BY_HAND)
    try:
        return sorted(task.value for task in MemoryQueue(data.engine).tasks("q"))
    finally:
        data.close()

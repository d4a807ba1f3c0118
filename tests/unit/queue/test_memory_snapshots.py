"""Snapshots of a data directory, and whoever looks into it meanwhile."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.queue import QueueMisconfigured
from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, MemoryQueue, SegmentLimits, check_data
from airflow_parallel_apply.queue.memory.frames import FrameFile, Kind
from tests.support.queue_data import BY_HAND, put
from tests.support.queue_service import until

MEGABYTE = 2**20


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    opened = DataDirectory(tmp_path / "queue", limits=BY_HAND)
    yield opened
    opened.close()


def test_a_frame_of_a_snapshot_is_about_a_megabyte_whatever_the_values_sizes(data: DataDirectory) -> None:
    queue = MemoryQueue(data.engine)
    for _ in range(12):
        put(queue, "x" * 400_000)
    file = FrameFile.read(data.snapshot(), Kind.SNAPSHOT)
    assert file is not None
    sizes = [len(frame.payload) for frame in file.frames()]
    assert len(sizes) == 5, "four of three values, and the count"
    assert max(sizes) < 1.5 * MEGABYTE
    assert len(check_data(data.path).tasks) == 12


def test_nobody_but_its_owner_reads_what_the_queue_keeps(data: DataDirectory) -> None:
    before = os.umask(0)
    try:
        put(MemoryQueue(data.engine), "a secret")
        snapshot = data.snapshot()
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in data.path.iterdir()}
    assert snapshot in modes
    assert set(modes.values()) == {0o600}, modes


def test_a_snapshot_that_fails_in_any_way_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = DataLimits(segment=SegmentLimits(max_items=5), snapshot_after_bytes=1)
    data = DataDirectory(tmp_path / "queue", limits=limits)
    queue = MemoryQueue(data.engine)
    tries: list[int] = []

    def fail() -> bool:
        tries.append(1)
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(data, "_is_snapshot_due", fail)
        for value in range(12):
            put(queue, value)
        until(lambda: tries)
    for value in range(12):
        put(queue, value)
    until(lambda: list(data.path.glob("snapshot-*.tasks")))
    data.close()


def test_a_snapshot_that_is_taken_while_somebody_looks_is_no_damage(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(MemoryQueue(data.engine), *range(3))
    data.snapshot()
    listed = Path.glob
    calls: list[str] = []

    looking = threading.get_ident()

    def glob(path: Path, pattern: str) -> Any:
        found = list(listed(path, pattern))
        # The directory's own threads list it, too.
        if threading.get_ident() == looking:
            calls.append(pattern)
            if len(calls) == 1:
                data.snapshot()
        return found

    monkeypatch.setattr(Path, "glob", glob)
    assert len(check_data(data.path).tasks) == 3


def test_a_directory_that_holds_no_queue_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(QueueMisconfigured, match=r"holds no queue\. Hint: Name what the service was given as --data"):
        check_data(tmp_path)
    with pytest.raises(QueueMisconfigured, match="is no directory"):
        check_data(tmp_path / "missing")


def test_a_directory_whose_lock_file_somebody_removed_holds_its_queue(data: DataDirectory) -> None:
    put(MemoryQueue(data.engine), 1)
    (data.path / "lock").unlink()
    assert len(check_data(data.path).tasks) == 1


def test_a_directory_that_may_not_be_read_is_not_taken_for_an_empty_one(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(QueueMisconfigured, match=r"Permission denied\. Hint: Ask as the user that serves it"):
        check_data(data.path)

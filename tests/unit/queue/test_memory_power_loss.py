"""A data directory after a power loss: what was synced is there, of the rest anything or nothing."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from airflow_parallel_apply.queue import Insert, QueueCorrupt, QueueUnavailable
from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, Disk, MemoryQueue, SegmentLimits, check_data
from airflow_parallel_apply.queue.memory.frames import HEADER_BYTES
from airflow_parallel_apply.queue.memory.log import segment_path, sync_directory
from airflow_parallel_apply.queue.memory.watermark import WATERMARK_NAME
from tests.support.queue_data import BY_HAND, put, values_in

SMALL = DataLimits(segment=SegmentLimits(max_items=3), snapshot_after_bytes=2**40)


class Platter:
    """The disk below the kernel's memory: each file as of its last sync, each name as of its directory's."""

    def __init__(self) -> None:
        self.contents: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        self.before_sync: Callable[[], None] = lambda: None
        self.held = ExitStack()

    def sync(self, descriptor: int) -> None:
        self.before_sync()
        os.fdatasync(descriptor)
        inode = os.fstat(descriptor).st_ino
        if inode not in self.contents:
            # Held open, so that no later file gets its number.
            self.held.callback(os.close, os.dup(descriptor))
        self.contents[inode] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def sync_names(self, directory: Path) -> None:
        self.before_sync()
        sync_directory(directory)
        self.names = {path.name: path.stat().st_ino for path in directory.iterdir()}

    @property
    def disk(self) -> Disk:
        return Disk(sync=self.sync, sync_names=self.sync_names)

    def lose_power(self, directory: Path, left: Path, *, chance: random.Random | None = None) -> Path:
        """Lose power, and leave in `left` what is found then. `chance`: the kernel had written some files by itself."""
        left.mkdir()
        names = dict(self.names)
        for path in directory.iterdir():
            if path.name != "lock" and chance is not None and chance.random() < 0.5:
                names[path.name] = path.stat().st_ino
        there = {path.stat().st_ino: path for path in directory.iterdir()}
        for name, inode in names.items():
            content = self.contents.get(inode, b"")
            if chance is not None and inode in there and chance.random() < 0.5:
                whole = there[inode].read_bytes()
                content = max(content, whole[: chance.randint(0, len(whole))], key=len)
            (left / name).write_bytes(content)
        return left


def kill(data: DataDirectory) -> None:
    """As kill -9 would leave it: nothing more is written, what was written is the kernel's."""
    data.log._broken = OSError("killed")
    with suppress(QueueUnavailable):
        data.close()


def test_what_a_kill_left_with_the_kernel_is_synced_before_anything_is_acknowledged_behind_it(tmp_path: Path) -> None:
    platter = Platter()
    data = DataDirectory(tmp_path / "queue", limits=BY_HAND, disk=platter.disk)
    put(MemoryQueue(data.engine), 0)
    # Written, and not synced.
    data.log.append((), ())
    kill(data)
    again = DataDirectory(tmp_path / "queue", limits=BY_HAND, disk=platter.disk)
    put(MemoryQueue(again.engine), 1)
    left = platter.lose_power(tmp_path / "queue", tmp_path / "left")
    kill(again)
    platter.held.close()
    assert values_in(left) == [0, 1]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_power_loss_before_any_sync_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    chance, platter, directory = random.Random(seed), Platter(), tmp_path / "queue"
    acknowledged: list[int] = []
    losses = 0

    def lose() -> None:
        nonlocal losses
        losses += 1
        left = platter.lose_power(directory, tmp_path / "left", chance=chance if losses % 3 else None)
        if left.joinpath(WATERMARK_NAME).exists() or (left / segment_path(left, 1).name).exists():
            found = values_in(left)
            assert set(acknowledged) <= set(found), losses
        shutil.rmtree(left)

    def opened() -> DataDirectory:
        return DataDirectory(directory, limits=SMALL, disk=platter.disk)

    data = opened()
    platter.before_sync = lose
    for value in range(20):
        match chance.randrange(8):
            case 0:
                platter.before_sync = lambda: None
                data.log.append((), ())
                kill(data)
                platter.before_sync = lose
                data = opened()
            case 1:
                data.snapshot()
            case 2 | 3:
                # Written, and nobody waits for it.
                for more in (1000, 2000):
                    data.engine.modify(claimant="maker", insert=[Insert(queue="q", value=str(value + more))])
        put(MemoryQueue(data.engine), value)
        acknowledged.append(value)
    platter.before_sync = lambda: None
    kill(data)
    platter.held.close()
    assert losses > 30


def damaged(directory: Path, *, at: int) -> None:
    """A byte of the newest segment, counted from its end."""
    newest = max(directory.glob("log-*.wal"))
    content = bytearray(newest.read_bytes())
    content[at] ^= 0xFF
    newest.write_bytes(content)


@pytest.mark.parametrize("cut", [False, True])
def test_damage_to_the_last_acknowledged_change_is_refused_and_not_taken_for_a_torn_write(
    tmp_path: Path, cut: bool
) -> None:
    directory = tmp_path / "queue"
    data = DataDirectory(directory, limits=BY_HAND)
    put(MemoryQueue(data.engine), 0)
    put(MemoryQueue(data.engine), 1)
    kill(data)
    newest = max(directory.glob("log-*.wal"))
    if cut:
        newest.write_bytes(newest.read_bytes()[:-20])
    else:
        damaged(directory, at=-3)
    with pytest.raises(QueueCorrupt, match="had been synced and acknowledged"):
        check_data(directory)
    with pytest.raises(QueueCorrupt, match=f"remove that file .*{WATERMARK_NAME}|{WATERMARK_NAME}.*remove that file"):
        DataDirectory(directory, limits=BY_HAND)
    # What the hint says, for a copy of a directory in use.
    (directory / WATERMARK_NAME).unlink()
    assert values_in(directory) == [0]


def test_a_torn_write_behind_the_watermark_is_dropped_and_so_is_a_segment_without_its_header(tmp_path: Path) -> None:
    directory = tmp_path / "queue"
    data = DataDirectory(directory, limits=BY_HAND)
    put(MemoryQueue(data.engine), 0)
    data.log.append((), ())
    kill(data)
    damaged(directory, at=-3)
    newest = max(directory.glob("log-*.wal"))
    following = segment_path(directory, 2)
    for header in (b"", b"PA", bytes(HEADER_BYTES)):
        following.write_bytes(header)
        assert [torn.path for torn in check_data(directory).torn] == [following, newest]
    assert values_in(directory) == [0]


def test_only_the_owner_reads_what_the_queue_keeps(tmp_path: Path) -> None:
    directory = tmp_path / "queue"
    directory.mkdir(mode=0o755)
    data = DataDirectory(directory, limits=BY_HAND)
    put(MemoryQueue(data.engine), 0)
    old = data.snapshot()
    data.close()
    old.chmod(0o644)
    data = DataDirectory(directory, limits=BY_HAND)
    data.snapshot()
    data.close()
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in directory.iterdir()} == {
        path.name: "0o0" for path in directory.iterdir()
    }

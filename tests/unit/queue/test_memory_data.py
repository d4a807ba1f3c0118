"""A data directory after every kind of damage."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.queue import (
    DependencyError,
    Insert,
    QueueCorrupt,
    QueueMisconfigured,
    Task,
)
from airflow_parallel_apply.queue.memory import DataDirectory, DataLimits, MemoryQueue, SegmentLimits, check_data
from airflow_parallel_apply.queue.memory.frames import HEADER_BYTES
from airflow_parallel_apply.queue.memory.watermark import WATERMARK_NAME
from tests.support.queue_data import BY_HAND, put, values_in

LEASE = timedelta(minutes=5)
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def filled(directory: Path, count: int, *, snapshots_at: tuple[int, ...] = ()) -> None:
    """Values 0 … count - 1, one a change."""
    data = DataDirectory(directory, limits=BY_HAND)
    queue = MemoryQueue(data.engine)
    for value in range(count):
        put(queue, value)
        if value in snapshots_at:
            data.snapshot()
    data.close()


def segments(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("log-*.wal") if path.stat().st_size > HEADER_BYTES)


def snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob("snapshot-*.tasks"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def test_everything_of_a_task_survives_a_restart_and_so_does_its_lease(directory: Path) -> None:
    data = DataDirectory(directory)
    queue = MemoryQueue(data.engine)
    queue.modify(
        claimant="maker",
        insert=[
            Insert(queue="é/strict", sequence=-5, value={"a": [1, None, "é😀"]}, attempt=3, err="why 😀", at=NEVER),
            Insert(queue="spread", value=None),
            Insert(queue="freed", value=None),
        ],
    )
    held = queue.try_claim(["spread"], claimant="ann", lease=LEASE)
    assert held is not None
    before = [task for name in ("é/strict", "spread", "freed") for task in queue.tasks(name)]
    stats = queue.queue_stats()
    data.close()
    for _ in range(2):
        data = DataDirectory(directory)
        queue = MemoryQueue(data.engine)
        assert [task for name in ("é/strict", "spread", "freed") for task in queue.tasks(name)] == before
        assert queue.queue_stats() == stats
        data.snapshot()
        data.close()
    data = DataDirectory(directory)
    queue = MemoryQueue(data.engine)
    assert queue.try_claim(["spread"], claimant="bob", lease=LEASE) is None
    with pytest.raises(DependencyError):
        queue.modify(claimant="bob", delete=[held.ref])
    queue.modify(claimant="ann", delete=[queue.renew(held, claimant="ann", lease=LEASE).ref])
    data.close()


def test_a_directory_has_one_process_at_a_time(directory: Path) -> None:
    data = DataDirectory(directory)
    with pytest.raises(QueueMisconfigured, match=f"open in another process \\(pid {os.getpid()}\\)"):
        DataDirectory(directory)
    data.close()
    DataDirectory(directory).close()


def test_a_directory_whose_lock_file_was_removed_has_one_process_all_the_same(directory: Path) -> None:
    data = DataDirectory(directory)
    (directory / "lock").unlink()
    with pytest.raises(QueueMisconfigured, match="open in another process"):
        DataDirectory(directory)
    data.close()
    DataDirectory(directory).close()


def test_segments_turn_over_by_items_and_by_bytes(directory: Path) -> None:
    filled(directory, 12)
    assert [path.name for path in segments(directory)] == [f"log-{number:012d}.wal" for number in (1, 2, 3)]
    data = DataDirectory(directory, limits=DataLimits(segment=SegmentLimits(max_bytes=1000)))
    queue = MemoryQueue(data.engine)
    for _ in range(4):
        put(queue, "x" * 800)
    data.close()
    # Two changes in each; the empty one of the end begins another.
    assert len(segments(directory)) == 3 + 2 + 1
    assert len(values_in_any_order(directory)) == 16


def values_in_any_order(directory: Path) -> list[Task]:
    data = DataDirectory(directory, limits=BY_HAND)
    found = list(data.engine.listing.tasks("q"))
    data.close()
    return found


def test_a_log_cut_off_anywhere_keeps_all_changes_in_front_of_the_cut(tmp_path: Path) -> None:
    original = tmp_path / "original"
    filled(original, 4)
    (segment,) = segments(original)
    size, ends = segment.stat().st_size, []
    for cut in range(size, HEADER_BYTES - 1, -7):
        copy = tmp_path / f"cut {cut}"
        shutil.copytree(original, copy)
        for later in copy.glob("log-*.wal"):
            if later.name > segment.name:
                later.unlink()
        os.truncate(copy / segment.name, cut)
        # As in a directory of an older release: nothing says how much of the log was synced.
        (copy / WATERMARK_NAME).unlink()
        looked = check_data(copy)
        found = values_in(copy)
        assert found == list(range(len(found)))
        assert sum(torn.dropped_bytes for torn in looked.torn) == cut - looked.log_bytes
        ends.append(len(found))
        # What was dropped stays dropped, and the log goes on behind it.
        data = DataDirectory(copy, limits=BY_HAND)
        put(MemoryQueue(data.engine), 99)
        data.close()
        assert values_in(copy) == [*found, 99]
    assert sorted(set(ends)) == [0, 1, 2, 3, 4]


def test_a_bad_byte_in_front_of_what_was_acknowledged_refuses_to_start_and_says_where(tmp_path: Path) -> None:
    original = tmp_path / "original"
    filled(original, 8)
    first, last = segments(original)
    # The last bytes are the empty change that a clean end leaves, behind everything acknowledged.
    for path, ends in ((first, 0), (last, 36)):
        for offset in range(0, path.stat().st_size - ends, 13):
            copy = tmp_path / f"{path.stem} {offset}"
            shutil.copytree(original, copy)
            flip(copy / path.name, offset)
            before = {found.name: found.read_bytes() for found in copy.glob("*.wal")}
            with pytest.raises(QueueCorrupt, match=rf"{path.name} at byte \d+.* Hint: Restore"):
                DataDirectory(copy, limits=BY_HAND)
            with pytest.raises(QueueCorrupt, match=rf"{path.name} at byte \d+.* Hint: Restore"):
                check_data(copy)
            assert {found.name: found.read_bytes() for found in copy.glob("*.wal")} == before


def test_a_missing_segment_refuses_to_start(directory: Path) -> None:
    filled(directory, 18)
    segments(directory)[1].unlink()
    with pytest.raises(QueueCorrupt, match="segment 2 of the queue's log is missing"):
        DataDirectory(directory, limits=BY_HAND)


def test_a_snapshot_behind_which_no_segment_is_left_refuses_to_start(directory: Path) -> None:
    filled(directory, 8, snapshots_at=(6,))
    (snapshot,) = snapshots(directory)
    number = snapshot.stem.partition("-")[2]
    for path in segments(directory):
        if path.stem.partition("-")[2] >= number:
            path.unlink()
    assert segments(directory)
    with pytest.raises(QueueCorrupt, match=rf"segment {int(number)} of the queue's log is missing"):
        DataDirectory(directory, limits=BY_HAND)


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(directory: Path) -> None:
    filled(directory, 30, snapshots_at=(3, 11, 22))
    assert len(snapshots(directory)) == 2
    older, newest = snapshots(directory)
    assert check_data(directory).snapshot == newest
    flip(newest, newest.stat().st_size // 2)
    looked = check_data(directory)
    assert looked.snapshot == older
    assert [newest.name in line for line in looked.damaged_snapshots.values()] == [True]
    os.truncate(older, older.stat().st_size - 1)
    with pytest.raises(QueueCorrupt, match="segment 1 of the queue's log is missing"):
        check_data(directory)
    assert snapshots(directory) == [older, newest]


def test_a_damaged_snapshot_is_not_kept_in_place_of_a_good_one(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(directory, 30, snapshots_at=(3, 11, 22))
    older, damaged = snapshots(directory)
    flip(damaged, damaged.stat().st_size // 2)
    data = DataDirectory(directory, limits=BY_HAND)
    assert damaged.name in caplog.text
    newest = data.snapshot()
    data.close()
    assert snapshots(directory) == [older, newest]
    flip(newest, newest.stat().st_size // 2)
    assert values_in(directory) == list(range(30))


def test_what_a_snapshot_makes_superfluous_is_removed(directory: Path) -> None:
    filled(directory, 60, snapshots_at=tuple(range(0, 60, 10)))
    oldest = int(snapshots(directory)[0].stem.partition("-")[2])
    assert all(int(path.stem.partition("-")[2]) >= oldest for path in directory.glob("log-*.wal"))
    (directory / "snapshot-000000000099.unfinished").write_bytes(b"a crash left it")
    assert values_in(directory) == list(range(60))
    assert not list(directory.glob("*.unfinished"))


def test_snapshots_are_taken_when_the_log_has_grown_while_others_modify(directory: Path) -> None:
    limits = DataLimits(segment=SegmentLimits(max_items=20), snapshot_after_bytes=5_000)
    data = DataDirectory(directory, limits=limits)
    queue = MemoryQueue(data.engine)

    def work(worker: int) -> None:
        (task,) = queue.modify(claimant="a", insert=[Insert(queue="moving", value=[worker, 0])])
        for turn in range(1, 150):
            # One modify over two queues: a snapshot that met half of it would show two or none.
            (task,) = queue.modify(
                claimant="a",
                delete=[task.ref],
                insert=[Insert(queue=("here", "there")[turn % 2], value=[worker, turn])],
            )

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
        data.snapshot()
    data.close()
    assert snapshots(directory)
    data = DataDirectory(directory, limits=limits)
    queue = MemoryQueue(data.engine)
    found = sorted(task.value for name in ("moving", "here", "there") for task in queue.tasks(name))
    assert found == [[worker, 149] for worker in range(3)]
    data.close()

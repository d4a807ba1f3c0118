"""Recovers the acknowledged tasks from a directory: the newest good snapshot, then the log from there on.

- A damaged snapshot is passed over for the one before it: the log goes back that far.
- The end of the last segment may be torn, by a crash in the middle of a write that nobody was told of: it is dropped.
- Anything else that is damaged, missing or out of order in the log is refused, by file and byte: to go on without it
  would lose or tear what was acknowledged. So is a log that ends below the watermark (`watermark`).
- What was read may not be on the disk yet: a kill leaves it with the kernel. It is synced before anything is built on
  it, since a power loss would otherwise take it away from below what is acknowledged from here on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from airflow_parallel_apply.queue.memory.frames import HEADER_BYTES, FrameFile, Kind
from airflow_parallel_apply.queue.memory.log import FIRST_SEGMENT, SEGMENT_PATTERN, Disk, number_of, segment_path
from airflow_parallel_apply.queue.memory.records import decode_change
from airflow_parallel_apply.queue.memory.snapshot import SNAPSHOT_PATTERN, read_snapshot
from airflow_parallel_apply.queue.memory.watermark import WATERMARK_NAME, Reached, read_watermark
from airflow_parallel_apply.queue.model import QueueCorrupt, Task

_HINT: Final = "Hint: Restore the directory from a copy; nothing in it was changed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """The end of the last segment, which holds nothing that was acknowledged from `size_bytes` on (0: all of it)."""

    path: Path
    size_bytes: int
    dropped_bytes: int


@dataclass(slots=True, kw_only=True)
class Recovered:
    """The contents of a data directory."""

    tasks: dict[int, Task] = field(default_factory=dict)
    """By the numbers of their ids."""
    position: int = 0
    last_segment: int = 0
    """The one that the log goes on behind."""
    snapshot: Path | None = None
    snapshot_bytes: int = 0
    log_bytes: int = 0
    """Size of the segments that were read."""
    change_count: int = 0
    segments: list[Path] = field(default_factory=list)
    """Those that were read and are kept."""
    torn: list[Torn] = field(default_factory=list)
    damaged_snapshots: dict[Path, str] = field(default_factory=dict)
    """Each with the reason why it cannot be read."""


def recover(directory: Path) -> Recovered:
    """Read everything, change nothing. Errors: `QueueCorrupt`."""
    recovered = Recovered()
    # Before the segments: while a service writes, they only grow beyond them.
    reached = read_watermark(directory)
    snapshots = sorted(directory.glob(SNAPSHOT_PATTERN), reverse=True)
    segments = {number_of(path): path for path in directory.glob(SEGMENT_PATTERN)}
    recovered.last_segment = max(segments, default=0)
    first = _load_snapshot(snapshots, recovered)
    # A snapshot is never without the segment that it begins.
    last = recovered.last_segment if recovered.snapshot is None else max(first, recovered.last_segment)
    wanted = range(first, last + 1)
    missing = next((number for number in wanted if number not in segments), None)
    if missing is not None:
        because = _because(recovered)
        raise QueueCorrupt(f"{directory}: segment {missing} of the queue's log is missing{because}. {_HINT}")
    _replay([segments[number] for number in wanted], recovered)
    if reached is not None:
        _check_reached(directory, recovered, reached)
    return recovered


def settle(directory: Path, recovered: Recovered, disk: Disk) -> None:
    """Cut off what is torn and sync what was read, so that the log can go on behind it; remove damaged snapshots, which
    would pass for some to fall back on. Errors: `OSError`.
    """
    for torn in recovered.torn:
        if torn.size_bytes == 0:
            torn.path.unlink()
        else:
            os.truncate(torn.path, torn.size_bytes)
    for path in (*recovered.segments, *filter(None, [recovered.snapshot])):
        disk.sync_file(path)
    for path in recovered.damaged_snapshots:
        path.unlink()
    for path in directory.glob(SNAPSHOT_PATTERN):
        # Older releases let everybody read them.
        path.chmod(0o600)
    disk.sync_names(directory)


def _load_snapshot(newest_first: Sequence[Path], recovered: Recovered) -> int:
    """The number of the first segment to read behind the newest good snapshot."""
    for path in newest_first:
        try:
            recovered.tasks = read_snapshot(path)
        except (QueueCorrupt, ValueError) as error:
            recovered.damaged_snapshots[path] = str(error)
            continue
        recovered.snapshot, recovered.snapshot_bytes = path, path.stat().st_size
        return number_of(path)
    return FIRST_SEGMENT


def _replay(paths: Sequence[Path], recovered: Recovered) -> None:
    whole = list(paths)
    if whole and _is_unbegun(whole[-1]):
        # A crash while the log turned to a new segment: the one before is the last.
        size = whole[-1].stat().st_size
        recovered.torn.append(Torn(path=whole.pop(), size_bytes=0, dropped_bytes=size))
        recovered.last_segment -= 1
    if recovered.snapshot is not None and not whole:
        raise QueueCorrupt(f"{paths[-1]} at byte 0: the segment behind {recovered.snapshot} is cut off. {_HINT}")
    position: int | None = None
    for path in whole:
        try:
            file = FrameFile.read(path, Kind.LOG)
        except QueueCorrupt as error:
            raise QueueCorrupt(f"{error}. {_HINT}") from error
        if file is None:
            raise QueueCorrupt(f"{path} at byte 0: the segment is cut off, and others follow it. {_HINT}")
        if position is not None and file.first_position != position + 1:
            raise QueueCorrupt(f"{path} at byte 0: begins at {file.first_position} instead of {position + 1}. {_HINT}")
        position = _replay_segment(file, recovered, is_last=path == whole[-1])
    recovered.position = position or 0
    recovered.segments = whole


def _is_unbegun(path: Path) -> bool:
    """True if a segment's header is not durable; no frame follows it then. A power loss may leave a write's size
    without its content.
    """
    content = path.read_bytes() if path.stat().st_size <= HEADER_BYTES else None
    return content is not None and (len(content) < HEADER_BYTES or not any(content))


def _check_reached(directory: Path, recovered: Recovered, reached: Reached) -> None:
    """Refuse a log that ends below the watermark. Segments in front of the last one are whole, or were refused."""
    missing = reached.segment > recovered.last_segment
    torn = next((torn.size_bytes for torn in recovered.torn if number_of(torn.path) == reached.segment), None)
    size_bytes = torn if torn is not None else _size_of(recovered, reached.segment)
    if missing or (size_bytes is not None and size_bytes < reached.size_bytes):
        raise QueueCorrupt(
            f"{segment_path(directory, reached.segment)} at byte {size_bytes or 0}: the queue's log ends here, and "
            f"{reached.size_bytes} bytes of this segment had been synced and acknowledged. {_HINT} A copy that was "
            f"made while the service ran has a newer {WATERMARK_NAME} than log: remove that file from the copy."
        )


def _size_of(recovered: Recovered, segment: int) -> int | None:
    return next((path.stat().st_size for path in recovered.segments if number_of(path) == segment), None)


def _replay_segment(file: FrameFile, recovered: Recovered, *, is_last: bool) -> int:
    """The position of its last change."""
    position, end = file.first_position - 1, HEADER_BYTES
    for frame in file.frames():
        if frame.position != position + 1:
            raise QueueCorrupt(
                f"{file.path} at byte {frame.offset}: change {frame.position} instead of {position + 1}. {_HINT}"
            )
        try:
            change = decode_change(frame.payload)
        except ValueError as error:
            raise QueueCorrupt(f"{file.path} at byte {frame.offset}: {error}. {_HINT}") from error
        for task_id in change.deletes:
            recovered.tasks.pop(task_id.int, None)
        recovered.tasks.update((task.task_id.int, task) for task in change.puts)
        position, end = frame.position, frame.end
        recovered.change_count += 1
    recovered.log_bytes += end
    if end < len(file.content):
        if not is_last or not file.is_torn_at(end):
            raise QueueCorrupt(f"{file.path} at byte {end}: the queue's log is damaged in its middle. {_HINT}")
        recovered.torn.append(Torn(path=file.path, size_bytes=end, dropped_bytes=len(file.content) - end))
    return position


def _because(recovered: Recovered) -> str:
    return f" (wanted since {'; '.join(recovered.damaged_snapshots.values())})" if recovered.damaged_snapshots else ""

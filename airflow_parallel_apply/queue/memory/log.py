"""The write-ahead log: changes in the order in which they are applied, in segments, synced for many callers at once.

A change is written before it is applied, whole or (on a full disk) not at all: then the file is cut back to where it
was, and the caller is refused with nothing done. One caller syncs for all that wrote meanwhile. A sync that fails tells
nothing about what is on the disk: from then on nothing is written any more, what was acknowledged before stays.

A segment is durable before the header of the next one is written, so a power loss tears the last segment only.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from airflow_parallel_apply.queue.memory.frames import HEADER_BYTES, Kind, encode_frame, encode_header
from airflow_parallel_apply.queue.memory.records import encode_change
from airflow_parallel_apply.queue.memory.watermark import Reached, Watermark
from airflow_parallel_apply.queue.model import QueueFull, QueueUnavailable, Task, TaskId

SEGMENT_PATTERN: Final = "log-*.wal"
FIRST_SEGMENT: Final = 1

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def segment_path(directory: Path, number: int) -> Path:
    """The path of a segment."""
    return directory / f"log-{number:012d}.wal"


def number_of(path: Path) -> int:
    """The number in a file's name."""
    return int(path.stem.partition("-")[2])


def private(name: str, flags: int) -> int:
    """Opens a file that nobody else may read: tasks' values are nobody else's business."""
    return os.open(name, flags | os.O_CLOEXEC, 0o600)


def sync_directory(directory: Path) -> None:
    """Make names durable that were created, renamed or removed in it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """Limits at which a segment is full: the next change begins another one."""

    max_bytes: int = 16 * 2**20
    max_items: int = 100_000

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_items < 1:
            raise ValueError("a segment of the queue's log holds at least one byte and one item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The calls that a disk may refuse; tests give some that do."""

    write: Callable[[int, bytes, int], int] = os.pwrite
    sync: Callable[[int], None] = os.fdatasync
    sync_names: Callable[[Path], None] = sync_directory

    def sync_file(self, path: Path) -> None:
        """Make a file durable that somebody else wrote."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)


class _Tail(NamedTuple):
    """The end of the log; replaced whole, so that it can be read without a lock."""

    descriptor: int
    segment: int
    position: int
    size_bytes: int
    item_count: int


class Log:
    """Implements `Journal`. Begins a new segment when it is opened.

    Locks: `_appending` for the tail, then `_syncing` for the descriptor while it is synced or closed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment: int,
        position: int,
        limits: SegmentLimits,
        disk: Disk,
        on_rotated: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self.disk = disk
        self._on_rotated = on_rotated
        self._appending = threading.Lock()
        self._syncing = threading.Lock()
        self._synced_more = threading.Condition()
        self._leading = False
        self._synced_position = position
        self._synced_bytes = HEADER_BYTES
        self._broken: OSError | None = None
        self._tail = _Tail(self._create(segment, position), segment, position, HEADER_BYTES, 0)
        self._watermark = Watermark(directory)

    @property
    def position(self) -> int:
        return self._tail.position

    @property
    def synced_position(self) -> int:
        """The position of the last durable change."""
        return self._synced_position

    @property
    def broken(self) -> bool:
        """True once nothing can be written any more."""
        return self._broken is not None

    def append(self, puts: Sequence[Task], deletes: Sequence[TaskId]) -> int:
        """Errors: `QueueFull`, `QueueUnavailable` after a failed sync; nothing was written."""
        payload = encode_change(puts, deletes)
        with self._appending:
            self._check_sound()
            if self._tail.size_bytes >= self._limits.max_bytes or self._tail.item_count >= self._limits.max_items:
                self._rotate()
            tail = self._tail
            frame = encode_frame(tail.position + 1, self._synced_bytes, payload)
            try:
                _write_all(self.disk.write, tail.descriptor, frame, tail.size_bytes)
            except OSError as error:
                self._cut_back(tail)
                raise _refused(error, self._directory) from error
            self._tail = tail._replace(
                position=tail.position + 1,
                size_bytes=tail.size_bytes + len(frame),
                item_count=tail.item_count + len(puts) + len(deletes),
            )
            return self._tail.position

    def wait(self, position: int) -> None:
        while True:
            with self._synced_more:
                while self._synced_position < position and self._broken is None and self._leading:
                    self._synced_more.wait()
                if self._synced_position >= position:
                    return
                self._check_sound()
                self._leading = True
            try:
                self._sync()
            finally:
                with self._synced_more:
                    self._leading = False
                    self._synced_more.notify_all()

    def rotate(self) -> int:
        """Begin another segment: its number. What was written before is durable then."""
        with self._appending:
            self._check_sound()
            self._rotate()
            return self._tail.segment

    def secure(self) -> None:
        """Make the watermark durable, too: from then on damage below it is told from a torn write even if the power
        fails. Called now and then, by one thread; nobody waits for it.
        """
        self._watermark.sync()

    def close(self) -> None:
        """Make everything durable and let go. Errors: `QueueUnavailable`.

        An empty change at the end says so: damage to the last change before it cannot pass for a torn write then.
        """
        with suppress(QueueFull):
            self.wait(self.append((), ()))
        with self._appending:
            try:
                if self._broken is None:
                    self.wait(self._tail.position)
            finally:
                with self._syncing:
                    os.close(self._tail.descriptor)
                    self._watermark.close()
                self._broken = self._broken or OSError("closed")

    def _sync(self) -> None:
        with self._syncing:
            tail = self._tail
            try:
                self.disk.sync(tail.descriptor)
            except OSError as error:
                self._break(error)
                self._check_sound()
            # Before anybody is told.
            self._watermark.advance(Reached(segment=tail.segment, size_bytes=tail.size_bytes))
            with self._synced_more:
                self._synced_position = max(self._synced_position, tail.position)
                self._synced_bytes = tail.size_bytes

    def _rotate(self) -> None:
        """The old segment is durable before the new one exists; on a full disk the old one stays in use."""
        old = self._tail
        self._sync()
        try:
            descriptor = self._create(old.segment + 1, old.position)
        except OSError as error:
            raise _refused(error, self._directory) from error
        with self._syncing:
            os.close(old.descriptor)
            self._synced_bytes = HEADER_BYTES
            self._tail = _Tail(descriptor, old.segment + 1, old.position, HEADER_BYTES, 0)
        self._on_rotated()

    def _create(self, segment: int, position: int) -> int:
        path = segment_path(self._directory, segment)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _write_all(self.disk.write, descriptor, encode_header(Kind.LOG, segment, position + 1), 0)
            self.disk.sync(descriptor)
            self.disk.sync_names(self._directory)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        return descriptor

    def _cut_back(self, tail: _Tail) -> None:
        """Take back what was written of a frame; if even that fails, no frame may follow it."""
        try:
            os.ftruncate(tail.descriptor, tail.size_bytes)
        except OSError as error:
            self._break(error)

    def _break(self, error: OSError) -> None:
        with self._synced_more:
            self._broken = error
            self._synced_more.notify_all()

    def _check_sound(self) -> None:
        if self._broken is not None:
            raise QueueUnavailable(
                f"the queue's log in {self._directory} cannot be written any more: {self._broken}. Hint: Repair the "
                "disk and start again; what was acknowledged is kept."
            ) from self._broken


def _write_all(write: Callable[[int, bytes, int], int], descriptor: int, content: bytes, offset: int) -> None:
    written = 0
    while written < len(content):
        # The system writes a part where the rest has no room; the next round says why.
        written += write(descriptor, content[written:] if written else content, offset + written)


def _refused(error: OSError, directory: Path) -> QueueFull:
    if error.errno in _NO_ROOM:
        return QueueFull(
            f"the queue's log in {directory} has no room: {error}; nothing was done. Hint: Make room there."
        )
    return QueueFull(f"the queue's log in {directory} cannot be written: {error}; nothing was done")

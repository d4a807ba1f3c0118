"""A data directory: the engine whose changes are kept there, and what keeps the directory small.

```
lock                    held by the process that has it open, as is the directory
snapshot-<n>.tasks      all tasks as of segment n; the newest two
log-<n>.wal             changes; from the older snapshot's segment on
synced                  up to where the log was synced
```
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.memory.log import SEGMENT_PATTERN, Disk, Log, SegmentLimits, number_of, sync_directory
from airflow_parallel_apply.queue.memory.recovery import Recovered, recover, settle
from airflow_parallel_apply.queue.memory.snapshot import SNAPSHOT_PATTERN, UNFINISHED_PATTERN, take_snapshot
from airflow_parallel_apply.queue.memory.steady_clock import SteadyClock
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured

_LOCK_NAME: Final = "lock"
_ITS_FILES: Final = (_LOCK_NAME, SNAPSHOT_PATTERN, SEGMENT_PATTERN)
_KEPT_SNAPSHOTS: Final = 2
"""The newest, and the one before it in case that it is damaged."""

_MAX_RACES: Final = 5
"""Times that files may vanish while somebody reads a directory that is served."""

_SECURE_SECONDS: Final = 1.0
"""How long the watermark may be in the kernel's memory only."""

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLimits:
    """Limits on the size of things. A snapshot is due when that much log was written since the last one, or as much as
    the last one had, whichever is more.
    """

    segment: SegmentLimits = field(default_factory=SegmentLimits)
    snapshot_after_bytes: int = 64 * 2**20
    max_queue_tasks: int | None = None
    """Tasks that one queue may have; more are refused as on a full disk."""

    def __post_init__(self) -> None:
        if self.snapshot_after_bytes < 1:
            raise ValueError("a snapshot is due after at least one byte of log")
        if self.max_queue_tasks is not None and self.max_queue_tasks < 1:
            raise ValueError("a queue may have at least one task")


class DataDirectory:
    """Open as long as this lives: `engine` serves, a thread takes snapshots when they are due.

    Errors of the constructor: `QueueCorrupt`, `QueueMisconfigured` (another process has it; it cannot be written).
    """

    def __init__(
        self,
        path: Path,
        *,
        limits: DataLimits | None = None,
        clock: Callable[[], datetime] | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        disk = disk or Disk()
        self._limits = limits or DataLimits()
        self._due, self._closing = threading.Event(), False
        self._snapshotting = threading.Lock()
        self._lock = _locked(path)
        try:
            self.recovered = recover(path)
            settle(path, self.recovered, disk)
            for damage in self.recovered.damaged_snapshots.values():
                _logger.warning("removed a damaged snapshot, whose changes the log has: %s", damage)
            for unfinished in path.glob(UNFINISHED_PATTERN):
                unfinished.unlink()
            self.log = Log(
                path,
                segment=self.recovered.last_segment + 1,
                position=self.recovered.position,
                limits=self._limits.segment,
                disk=disk,
                on_rotated=self._due.set,
            )
        except OSError as error:
            self._lock.close()
            raise QueueMisconfigured(f"the queue's directory {path} cannot be opened: {error}") from error
        except BaseException:
            self._lock.close()
            raise
        self._snapshot_bytes = self.recovered.snapshot_bytes
        # Set back while nobody served, the system's clock is behind what was written.
        latest = max((task.modified for task in self.recovered.tasks.values()), default=None)
        self.engine = Engine(
            journal=self.log,
            clock=clock or SteadyClock(not_before=latest),
            max_queue_tasks=self._limits.max_queue_tasks,
        )
        self.engine.task_queues.fill(self.recovered.tasks.values())
        # The engine has them: a million tasks need no second table.
        self.recovered.tasks = {}
        self._snapshotter = threading.Thread(target=self._snapshot_when_due, name="queue snapshots", daemon=True)
        self._due.set()
        self._snapshotter.start()
        # A thread of its own: a snapshot may take minutes.
        self._closed = threading.Event()
        self._securer = threading.Thread(target=self._secure_now_and_then, name="queue watermark", daemon=True)
        self._securer.start()

    def snapshot(self) -> Path:
        """Take one now and remove what it makes superfluous. Errors: `QueueError`, with nothing lost."""
        with self._snapshotting:
            try:
                path = take_snapshot(self.engine, self.log, self.path)
                self._snapshot_bytes = path.stat().st_size
                self._clean_up()
            except OSError as error:
                raise QueueError(f"no snapshot could be taken in {self.path}: {error}") from error
        return path

    def close(self) -> None:
        """Make everything durable and let the directory go; idempotent. A snapshot under way ends first."""
        if self._closing:
            return
        self._closing = True
        self._due.set()
        self._closed.set()
        self._snapshotter.join()
        self._securer.join()
        try:
            self.log.close()
        finally:
            self._lock.close()

    def _snapshot_when_due(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._closing:
                return
            try:
                if self._is_snapshot_due():
                    self.snapshot()
            except Exception as error:  # noqa: BLE001  the log has everything; the next segment is the next occasion
                _logger.warning("the queue's log goes on without a new snapshot: %s", error)

    def _secure_now_and_then(self) -> None:
        while not self._closed.wait(_SECURE_SECONDS):
            self.log.secure()

    def _is_snapshot_due(self) -> bool:
        with self._snapshotting:
            newest = max(map(number_of, self.path.glob(SNAPSHOT_PATTERN)), default=0)
            segments = [path for path in self.path.glob(SEGMENT_PATTERN) if number_of(path) >= newest]
            log_bytes = sum(path.stat().st_size for path in segments)
        return log_bytes >= max(self._limits.snapshot_after_bytes, self._snapshot_bytes)

    def _clean_up(self) -> None:
        """Remove what no recovery reads any more: older snapshots first, so that each one left has its log."""
        snapshots = sorted(self.path.glob(SNAPSHOT_PATTERN))
        for path in snapshots[:-_KEPT_SNAPSHOTS]:
            path.unlink()
        if len(snapshots) >= _KEPT_SNAPSHOTS:
            oldest = number_of(snapshots[-_KEPT_SNAPSHOTS])
            for path in sorted(self.path.glob(SEGMENT_PATTERN)):
                if number_of(path) < oldest:
                    path.unlink()


def check_data(path: Path) -> Recovered:
    """Read a directory as a start would, changing nothing, even while it is served. Errors: `QueueCorrupt`;
    `QueueMisconfigured` for one that is no queue's, or cannot be read.
    """
    if not path.is_dir():
        raise QueueMisconfigured(f"{path} is no directory")
    try:
        # Listed first: what cannot be read would pass for empty. Somebody may have removed the lock file as a leftover.
        if not any(found.match(pattern) for found in path.iterdir() for pattern in _ITS_FILES):
            raise QueueMisconfigured(f"{path} holds no queue. Hint: Name what the service was given as --data.")
        return _recovered_while_served(path)
    except OSError as error:
        raise QueueMisconfigured(f"{path} cannot be read: {error}. Hint: Ask as the user that serves it.") from error


def _recovered_while_served(path: Path) -> Recovered:
    """Errors: those of `recover`; `OSError`. A service removes what two newer snapshots make superfluous."""
    for _ in range(_MAX_RACES):
        with suppress(FileNotFoundError):
            return recover(path)
    return recover(path)


def _make(path: Path) -> None:
    """With its parents, as names that a power loss does not take away."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def _locked(path: Path) -> ExitStack:
    """Hold the directory until the stack is closed: by its lock file, whose holder is named to others, and by itself,
    since somebody may take that file for a leftover and remove it. Not every network file system locks directories.
    """
    with ExitStack() as held:
        try:
            _make(path)
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, directory)
            flags = os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC
            file = held.enter_context(os.fdopen(os.open(path / _LOCK_NAME, flags, 0o600), "a+"))
        except OSError as error:
            raise QueueMisconfigured(f"the queue's directory {path} cannot be opened: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_directory(directory)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise QueueMisconfigured(
                f"the queue's directory {path} is open in another process (pid {holder}). Hint: One service serves it."
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return held.pop_all()


def _lock_directory(descriptor: int) -> None:
    """Errors: `BlockingIOError` where somebody has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        _logger.info("this file system locks files alone: %s", error)

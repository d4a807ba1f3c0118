"""Remembers which files this host has verified lately, so that its lanes and tasks do not read them again and again.

A mark says that a segment's row file, as its inode and times tell it, had a checksum; a file that was written since
has other times. (The file of its transactions is compared whenever it is read.) A mark lapses after an hour, since a
disk may lose what it held, and a host's marks are its own: each host reads for itself what a network brings it.
Whatever keeps a mark from being read or written means one more reading, never a missing one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import xxhash

_LASTS: Final = timedelta(hours=1)
_SWEPT_EVERY: Final = timedelta(minutes=10)
_SWEPT: Final = "swept"
_MODE: Final = 0o700


class VerifiedFiles:
    """Marks in a directory of this user's. Processes and threads may share it."""

    def __init__(self, root: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock

    def knows(self, path: Path, checksum: str) -> bool:
        """True if the file was found to have the checksum, and has not changed since."""
        with contextlib.suppress(OSError):
            age = self._clock() - self._mark(path, checksum).stat().st_mtime
            return 0 <= age < _LASTS.total_seconds()
        return False

    def add(self, path: Path, checksum: str) -> None:
        """The file has the checksum. Marks that have lapsed are removed now and then on the way."""
        with contextlib.suppress(OSError):
            mark = self._mark(path, checksum)
            self._touch(mark)
            self._sweep(mark.parent)

    def _touch(self, mark: Path) -> None:
        mark.touch(mode=0o600)
        os.utime(mark, (self._clock(), self._clock()))

    def _sweep(self, directory: Path) -> None:
        """At most once in `_SWEPT_EVERY`, whoever comes: a look at all marks for each new one would cost a log of many
        segments its square.
        """
        swept = directory / _SWEPT
        with contextlib.suppress(FileNotFoundError):
            if 0 <= self._clock() - swept.stat().st_mtime < _SWEPT_EVERY.total_seconds():
                return
        self._touch(swept)
        for mark in directory.iterdir():
            if self._clock() - mark.stat().st_mtime >= _LASTS.total_seconds():
                mark.unlink(missing_ok=True)

    def _mark(self, path: Path, checksum: str) -> Path:
        """Errors: `OSError`, also where the directory is open to others."""
        found = path.stat()
        identity = (path, checksum, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        return self._directory() / xxhash.xxh3_128_hexdigest("\n".join(map(str, identity)).encode())

    def _directory(self) -> Path:
        root = self._root or Path(tempfile.gettempdir()) / f"parallel-apply-{os.getuid()}"
        directory = root / "verified"
        directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        for each in (root, directory):
            status = each.lstat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise PermissionError(f"{each} is open to other users")
        return directory

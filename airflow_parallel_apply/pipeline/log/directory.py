"""A log's directory: its layout, and the few file operations that law 7 rests on.

::

    log.json                               identity; its exclusive create makes the log exist
    manifests/<20 digits>.json             version n: what it adds to version n-1; its exclusive create is a commit
    segments/<name>.rows.parquet           one immutable pair per segment; nobody reads it before a manifest names it
    segments/<name>.transactions.parquet
    readers/<pipeline>-<digest>.json       who reads the log, see `readers`
    copy.json                              how far the initial copy came, see `copy_note`; can be removed at any time
    channels/<digest>/…                    what a store made from it; can be removed at any time

The directory is a POSIX one that every worker sees: `os.link` must be atomic and must refuse an existing name.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import START_ANEW, LogError
from airflow_parallel_apply.pipeline.stream.address import log_path

ROWS_SUFFIX: Final = ".rows.parquet"
TRANSACTIONS_SUFFIX: Final = ".transactions.parquet"
RESTORE: Final = f"Restore the log's directory from a copy, or start anew. {START_ANEW}"
"""The hint for a damaged log: nothing else has what it holds."""
_TEMPORARY_PREFIX: Final = ".tmp-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """Paths of one log. Errors of the file system become `LogError`s that name the file."""

    root: Path

    @classmethod
    def from_url(cls, url: str) -> LogDirectory:
        """Paths of the log at a URL, see `log_path`."""
        return cls(root=log_path(url))

    @property
    def identity_path(self) -> Path:
        return self.root / "log.json"

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def segments(self) -> Path:
        return self.root / "segments"

    @property
    def readers(self) -> Path:
        return self.root / "readers"

    @property
    def channels(self) -> Path:
        return self.root / "channels"

    @property
    def copy_note(self) -> Path:
        return self.root / "copy.json"

    def manifest_path(self, version: int) -> Path:
        return self.manifests / f"{version:020d}.json"

    def rows_path(self, name: str) -> Path:
        return self.segments / f"{name}{ROWS_SUFFIX}"

    def transactions_path(self, name: str) -> Path:
        return self.segments / f"{name}{TRANSACTIONS_SUFFIX}"

    def manifest_versions(self) -> list[int]:
        """Versions that exist, ascending; temporary files of crashed writers are not among them."""
        with file_errors(self.manifests):
            names = [entry.name for entry in os.scandir(self.manifests)]
        return sorted(int(name[:20]) for name in names if len(name) == 25 and name[:20].isdigit())

    def create_directories(self) -> None:
        """Make the log's folders, durable."""
        with file_errors(self.root):
            self.segments.mkdir(parents=True, exist_ok=True)
            self.manifests.mkdir(exist_ok=True)
        sync_directory(self.root)
        sync_directory(self.root.parent)


def publish(path: Path, content: bytes) -> bool:
    """Make `path` appear whole and durable; False when it exists already, and then nothing has changed."""
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        write_durable(temporary, content)
        with file_errors(path):
            try:
                os.link(temporary, path)
            except FileExistsError:
                # NFS may repeat a link whose answer was lost: then the name that exists is our own file.
                if temporary.stat().st_nlink == 1:
                    return False
    finally:
        temporary.unlink(missing_ok=True)
    # Only after this may anybody act on the file, the writer included: a crash could still take the name away.
    sync_directory(path.parent)
    return True


def write_durable(path: Path, content: bytes | memoryview) -> None:
    """Create a file that must not exist, and sync its content; its name is synced with the directory."""
    with file_errors(path), path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with file_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """True if a crashed `publish` may have left the file."""
    return path.name.startswith(_TEMPORARY_PREFIX)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a `LogError` that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise LogError(
            f"{path} is missing",
            hint=f"Is the log's directory mounted on this host? If somebody removed files from it: {RESTORE}",
        ) from error
    except PermissionError as error:
        raise LogError(f"{path}: permission denied", hint="Give this process's user access to the log.") from error
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}", hint="Check the file system of the log.") from error

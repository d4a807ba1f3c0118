"""Records which targets read a log: one small file for each pipeline and target database, which `purge` reads first.

::

    readers/<pipeline>-<digest of the target>.json

A run registers before it first plans, so a target that is not here has no position in this log.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.checked_file import checked_bytes, read_checked
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors, publish, sync_directory
from airflow_parallel_apply.pipeline.model.former import STREAMS, in_words_of_now


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReaderEntry:
    """A pipeline in a target database. `place`: where it was when it registered, for people."""

    pipeline: str
    server: str
    database: str
    place: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The key that tells it from others; the place may change."""
        return (self.pipeline, self.server, self.database)

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256("/".join(self.key).encode()).hexdigest()[:12]
        return f"{self.pipeline}-{digest}.json"


def register_reader(url: str, entry: LogReaderEntry) -> bool:
    """Durable when it returns; False when it was registered before."""
    directory = LogDirectory.from_url(url)
    path = directory.readers / entry.file_name
    with file_errors(path):
        directory.readers.mkdir(exist_ok=True)
        is_there = path.exists()
    # Whoever made folder or entry may have died before their names were on disk.
    sync_directory(directory.root)
    if is_there:
        sync_directory(directory.readers)
        return False
    return publish(path, checked_bytes(asdict(entry)))


def forget_reader(url: str, entry: LogReaderEntry) -> bool:
    """False when it was not registered."""
    path = reader_path(url, entry)
    with file_errors(path):
        is_there = path.exists()
        path.unlink(missing_ok=True)
    return is_there


def read_readers(url: str) -> tuple[LogReaderEntry, ...]:
    """Everybody, by name. `LogError` for a damaged entry."""
    directory = LogDirectory.from_url(url)
    with file_errors(directory.readers):
        if not directory.readers.exists():
            return ()
        paths = sorted(path for path in directory.readers.iterdir() if path.suffix == ".json")
    entries = []
    for path in paths:
        try:
            entries.append(LogReaderEntry(**in_words_of_now(read_checked(path), STREAMS)))
        except TypeError as error:
            raise LogError(f"{path} is not an entry of a log's readers: {error}") from error
    return tuple(entries)


def reader_path(url: str, entry: LogReaderEntry) -> Path:
    """The path of the entry, for people."""
    return LogDirectory.from_url(url).readers / entry.file_name


def forget_command(url: str, entry: LogReaderEntry) -> str:
    """The command by which a person forgets a reader whose target is gone."""
    return f"rm {shlex.quote(str(reader_path(url, entry)))}"


def with_forget_commands(url: str, entries: Iterable[LogReaderEntry]) -> str:
    """The readers, each with its own command, since some may still be there."""
    return ", ".join(
        f"pipeline {entry.pipeline} at {entry.place} (`{forget_command(url, entry)}`)" for entry in entries
    )

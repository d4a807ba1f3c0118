"""The logs that a router serves, by name: those that were named, and those in a directory of logs."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, ParallelApplyError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors
from airflow_parallel_apply.pipeline.log.reader import DirectoryLogReader

_Key: TypeAlias = tuple[Path, int, int, int]
"""A log's directory, and what tells its identity's file from another one's: device, inode, time."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPaths:
    """The directories that may be served. `named`: one log each. `within`: each directory in it that holds a log is
    served under its own name. `anywhere`: the path of any log is its name; for a router that serves its own user alone.
    Errors: `ValueError` for a name that no URL could have, or where there is none of these.
    """

    named: Mapping[str, Path] = field(default_factory=dict)
    within: Path | None = None
    anywhere: bool = False

    def __post_init__(self) -> None:
        for name in self.named:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a log: letters, digits, _, - and . are")
        if not self.named and self.within is None and not self.anywhere:
            raise ValueError("no log is named. Hint: Give --log NAME=DIRECTORY or --logs DIRECTORY.")

    def find(self, name: str) -> Path:
        """The directory of a log. Errors: `ConfigurationError` for a name that is not served."""
        if name in self.named:
            return self.named[name]
        # A link inside the directory may not lead out of it.
        if self.within is not None and _NAME.fullmatch(name):
            within = self.within.resolve()
            path = (within / name).resolve()
            if path.parent == within and LogDirectory(root=path).identity_path.exists():
                return path
        if self.anywhere and name.startswith("/") and LogDirectory(root=Path(name)).identity_path.exists():
            return Path(name)
        raise ConfigurationError(
            f"this router serves no log {name!r}",
            op="stream",
            hint="The path of log_url names the log; the router serves what its --log and --logs say.",
        )

    def names(self) -> tuple[str, ...]:
        """Names of the logs that are there now, in order."""
        found = set(self.named)
        if self.within is not None and self.within.is_dir():
            found |= {path.name for path in self.within.iterdir() if _NAME.fullmatch(path.name) and self._is_log(path)}
        return tuple(sorted(found))

    def _is_log(self, path: Path) -> bool:
        try:
            return bool(self.find(path.name))
        except ConfigurationError:
            return False


class ServedLogs:
    """Readers of these logs, each opened when it is first asked for. Thread-safe."""

    def __init__(self, paths: LogPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._readers: dict[str, tuple[_Key, DirectoryLogReader]] = {}

    def names(self) -> tuple[str, ...]:
        """As `LogPaths` has them."""
        return self._paths.names()

    def directory(self, name: str) -> LogDirectory:
        """The directory of a log. Errors: `ConfigurationError`."""
        return LogDirectory(root=self._paths.find(name))

    def find(self, log_id: str, root: str) -> str:
        """The name of the log with an id; `root`: the directory in which whoever asks sees it. Errors:
        `ConfigurationError` where this router does not serve it, or serves copies of it.
        """
        found: dict[Path, str] = {}
        for name in (*self.names(), root):
            with suppress(ParallelApplyError):
                if self.reader(name).identity.log_id == log_id:
                    found.setdefault(self.directory(name).root.resolve(), name)
        if len(found) == 1:
            return next(iter(found.values()))
        if Path(root).resolve() in found:
            return found[Path(root).resolve()]
        if found:
            raise ConfigurationError(
                f"this router serves several directories of the log with the id {log_id}: {', '.join(found.values())}",
                op="stream",
                hint="All but one are copies, which may lack transactions: move them elsewhere.",
            )
        raise ConfigurationError(
            f"this router serves no log with the id {log_id}",
            op="stream",
            hint="It reads the log itself: name its directory there with --log or --logs.",
        )

    def reader(self, name: str, log_id: str = "") -> DirectoryLogReader:
        """The log of that name; with `log_id`, if it is that one. Errors: `ConfigurationError`, `LogError`."""
        directory = self.directory(name)
        with file_errors(directory.identity_path):
            found = directory.identity_path.stat()
        # A log may be removed, and another one made in its place.
        key = (directory.root, found.st_dev, found.st_ino, found.st_ctime_ns)
        with self._lock:
            opened, reader = self._readers.get(name, (None, None))
            if reader is None or opened != key:
                reader = DirectoryLogReader(directory)
                self._readers[name] = (key, reader)
        if log_id and reader.identity.log_id != log_id:
            raise LogError(
                f"the router's log {name!r} is log {reader.identity.log_id}, and log {log_id} is asked for",
                op="stream",
                hint="Use the pipeline's own log_url, or let the router serve that log under this name.",
            )
        return reader

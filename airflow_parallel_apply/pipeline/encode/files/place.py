"""A directory at a URL, as far as files that appear together need one: `FilePlace`.

What all rests on is the *exclusive create* of a manifest: of several writers one makes it, the others are told. On a
local disk it is a hard link, in a bucket a conditional put, which the file systems of S3 and Google Cloud Storage have.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, Unavailable
from airflow_parallel_apply.pipeline.log.directory import is_temporary, publish, sync_directory

LOCAL: Final = frozenset({"file", "local"})
EXCLUSIVE: Final = frozenset({*LOCAL, "memory", "s3", "s3a", "gs", "gcs"})
"""Protocols whose file systems refuse a name that exists, whoever else creates it at the same moment."""

_CLIENTS: Final = frozenset({"aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "requests"})
"""Packages of the clients of buckets. What keeps them from an answer comes as their own errors."""

_LASTING: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"})
"""Those of them that do not pass."""


class FilePlace:
    """Files below a URL, by their paths relative to it. Thread-safe.

    Errors of all calls: `Unavailable` for what may pass, `EncodeError` for what will not.
    """

    def __init__(self, url: str, options: Mapping[str, object] | None = None) -> None:
        """`options`: of the file system, beside those of its own configuration."""
        try:
            import fsspec
        except ImportError as error:
            raise ConfigurationError(
                "fsspec is not installed here",
                op="export",
                hint="pip install 'airflow-provider-parallel-apply[files]'",
            ) from error
        protocol = url.partition("://")[0] if "://" in url else "file"
        if protocol not in EXCLUSIVE:
            raise ConfigurationError(
                f"{protocol}:// is not usable: its files cannot be made to appear once and together",
                op="export",
                hint=f"Take one of {', '.join(f'{known}://' for known in sorted(EXCLUSIVE))}, or a path.",
            )
        try:
            self._files: Any
            self._files, root = fsspec.core.url_to_fs(
                url if "://" in url else f"file://{Path(url).absolute()}", **(options or {})
            )
        except ImportError as error:
            raise ConfigurationError(f"{protocol}:// needs a package: {error}", op="export") from error
        self._root = str(root).rstrip("/")
        self._is_local = protocol in LOCAL

    def write(self, path: str, pieces: Iterable[bytes]) -> int:
        """Write a file that nobody names yet; its size. It is durable when this returns."""
        full = self._full(path)
        size = 0
        with place_errors(full):
            self._files.makedirs(posixpath.dirname(full), exist_ok=True)
            with self._files.open(full, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                    size += len(piece)
                if self._is_local:
                    file.flush()
                    os.fsync(file.fileno())
        return size

    def publish(self, path: str, content: bytes) -> bool:
        """Make a file appear whole; False where its name exists already, and then nothing has changed."""
        full = self._full(path)
        with place_errors(full):
            self._files.makedirs(posixpath.dirname(full), exist_ok=True)
            if self._is_local:
                self.sync([path])
                return publish(Path(full), content)
            try:
                self._files.pipe_file(full, content, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if not _is_refused_condition(error):
                    raise
                return False
        return True

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with place_errors(full):
            found: bytes = self._files.cat_file(full)
        return found

    def size(self, path: str) -> int | None:
        """Bytes; None where there is no such file."""
        full = self._full(path)
        with place_errors(full), suppress(FileNotFoundError):
            self._files.invalidate_cache()
            # Not by `exists`: that takes whatever it cannot look at for something that is not there.
            return int(self._files.info(full)["size"])
        return None

    def names(self, folder: str) -> list[str]:
        """The paths of all files below a folder, however deep, without those that a cut-off commit left aside."""
        full = self._full(folder)
        with place_errors(full):
            self._files.invalidate_cache()
            found = self._files.find(full, on_error=_unless_gone) if self._is_local else self._files.find(full)
        return sorted(posixpath.relpath(name, self._root) for name in found if not is_temporary(Path(name)))

    def modified(self, path: str) -> datetime | None:
        """When a file was written; None where it is gone."""
        full = self._full(path)
        with place_errors(full), suppress(FileNotFoundError):
            found: datetime = self._files.modified(full)
            return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return None

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        full = self._full(path)
        with place_errors(full), suppress(FileNotFoundError):
            self._files.rm_file(full)

    def sync(self, paths: Iterable[str]) -> None:
        """Make the names of files durable, and those of the folders that they are in, where writing them did not."""
        if self._is_local:
            root = Path(self._root)
            folders = {Path(self._full(path)).parent for path in paths}
            inside = {one for folder in folders for one in (folder, *folder.parents) if one.is_relative_to(root)}
            for folder in sorted({*inside, root.parent}, reverse=True):
                sync_directory(folder)

    def url(self, path: str) -> str:
        """A file's URL, for those who read it."""
        found: str = self._files.unstrip_protocol(self._full(path))
        return found

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"


@contextmanager
def place_errors(path: str) -> Iterator[None]:
    """Turn what a file system refuses into an error that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise EncodeError(
            f"{path}: {error.strerror or error}", op="export", hint="Check the place and its rights."
        ) from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}", op="export", hint="Check the file system.") from error
    except Exception as error:
        if not any(kind.__module__.partition(".")[0] in _CLIENTS for kind in type(error).__mro__):
            raise
        kind = EncodeError if type(error).__name__ in _LASTING else Unavailable
        raise kind(f"{path}: {error}", op="export", hint="Check the place, its login and its endpoint.") from error


def _is_refused_condition(error: OSError) -> bool:
    """True if a bucket has the name already. Some services do not say which condition they refuse."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def _unless_gone(error: OSError) -> None:
    """Pass over a folder that is gone. Anything else that keeps it from being listed does not make it empty."""
    if not isinstance(error, FileNotFoundError):
        raise error

"""A place's files and manifests together: `Dataset`. What is committed appears at once, once, or not at all.

::

    <url>/<schema>.<table>/<relation_id>/<name>.<suffix>    data, by table and version of its definition
    <url>/_manifests/<20 digits>.json                       version n: what it adds to version n-1

The exclusive create of a manifest is the commit; a data file that no manifest names means nothing.

| killed | leaves | and |
|---|---|---|
| while data is written | files that no manifest names | `sweep` removes them when they are old |
| before the manifest | the same | |
| after it | the commit | |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

import xxhash

from airflow_parallel_apply.pipeline.encode.files.manifest import (
    FOLDER,
    FileManifest,
    manifest_path,
    version_of,
)
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import EncodeError

GRACE: Final = timedelta(days=1)
"""A writer that takes longer than this to commit what it wrote may find it swept, and is refused."""

_FOLDER_CHARACTERS: Final = " "


class FilesLost(EncodeError):
    """A file that was written is not there any more when it is to be committed."""


class Dataset:
    """Reads and commits. Any number may do so side by side. Errors: those of `FilePlace`."""

    def __init__(self, place: FilePlace, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.place = place
        self._clock = clock

    def newest(self, known: FileManifest | None = None) -> FileManifest | None:
        """The newest manifest; None before the first commit. `known`: one that is there: then only those behind it are
        looked for.
        """
        if known is not None:
            while self.place.size(manifest_path(known.version + 1)) is not None:
                known = self._read(known.version + 1)
            return known
        versions = self._versions()
        return self._read(versions[-1]) if versions else None

    def manifests(self) -> Sequence[FileManifest]:
        """All of them, oldest first."""
        return [self._read(version) for version in self._versions()]

    def data_path(self, table: str, relation_id: int, name: str) -> str:
        """The path of a new file. A table's name is escaped as in URLs where a file system could not have it."""
        return f"{quote(table, safe=_FOLDER_CHARACTERS)}/{relation_id}/{name}"

    def write(self, path: str, pieces: Iterable[bytes]) -> tuple[int, str]:
        """Write a file that no manifest names yet; its size and checksum. What cannot be finished is removed."""
        digest = xxhash.xxh3_128()

        def digested() -> Iterable[bytes]:
            for piece in pieces:
                digest.update(piece)
                yield piece

        try:
            size = self.place.write(path, digested())
        except BaseException:
            self.place.remove(path)
            raise
        return size, digest.hexdigest()

    def commit(self, manifest: FileManifest) -> bool:
        """Make the next version; False where another writer has made it, and then nothing has changed.

        Errors: `FilesLost` where a file that it names is not there any more.
        """
        for file in manifest.files:
            if self.place.size(file.path) != file.bytes_:
                raise FilesLost(
                    f"{self.place.url(file.path)} is not there any more as it was written",
                    op="export",
                    hint=f"Was it swept? A commit must not take longer than {GRACE}. Export again.",
                )
        self.place.sync(file.path for file in manifest.files)
        if self.place.publish(manifest_path(manifest.version), manifest.to_bytes()):
            return True
        # A client that repeats a request whose answer was lost is told that the name exists: it may be our own.
        return self._read(manifest.version).writer == manifest.writer

    def sweep(self, *, grace: timedelta = GRACE) -> tuple[str, ...]:
        """Remove files that no manifest names and that are older than `grace`; their paths."""
        old = [
            path
            for path in self.place.names("")
            if not path.startswith(f"{FOLDER}/") and self._clock() - self.place.modified(path) >= grace
        ]
        # Read after the files: what was committed meanwhile is named by now.
        named = {file.path for manifest in self.manifests() for file in manifest.files}
        orphans = tuple(path for path in old if path not in named)
        for path in orphans:
            self.place.remove(path)
        return orphans

    def _versions(self) -> list[int]:
        found = (version_of(path) for path in self.place.names(FOLDER))
        return sorted(version for version in found if version is not None)

    def _read(self, version: int) -> FileManifest:
        path = manifest_path(version)
        return FileManifest.from_bytes(self.place.read(path), self.place.url(path))

"""A place's files and manifests together: `Dataset`. What is committed appears at once, once, or not at all.

::

    <url>/<schema>.<table>/<relation_id>/<name>.<suffix>    data, by table and version of its definition
    <url>/_manifests/<20 digits>.json                       version n: what it adds to version n-1
    <url>/_manifests/merged/…                               what many versions add, see `merged`
    <url>/_snapshots/…                                      tables folded from the files above: a dataset of its own

The exclusive create of a manifest is the commit; a data file that no manifest names means nothing.

| killed | leaves | and |
|---|---|---|
| while data is written | files that no manifest names | `sweep` removes them when they are old |
| before the manifest | the same | |
| after it | the commit | |
| while manifests are merged | the commit | the next one merges them |
"""

from __future__ import annotations

import re
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
from airflow_parallel_apply.pipeline.encode.files.merged import FAN_OUT, MergedManifests
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, EncodeError, Unavailable

GRACE: Final = timedelta(days=1)
"""A writer that takes longer than this to commit what it wrote may find it swept, and is refused."""

SNAPSHOTS: Final = "_snapshots"
"""The folder of the snapshots, whose files are none of the feed's."""

_FOLDER_CHARACTERS: Final = " "

_DATA: Final = re.compile(r"[^/]*\.[^/]*/\d+/[^/]+")
"""The paths of data files. What else lies there, such as another directory's, is none of ours."""


class FilesLost(EncodeError):
    """A file that was written is not there any more when it is to be committed."""


class Dataset:
    """Reads and commits. Any number may do so side by side. `is_merged`: False where versions are few, and each is to
    be read by itself. Errors: those of `FilePlace`.
    """

    def __init__(
        self, place: FilePlace, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC), is_merged: bool = True
    ) -> None:
        self.place = place
        self._clock = clock
        self._is_merged = is_merged
        self._merged = MergedManifests(place)
        self._looked: datetime | None = None
        """When the newest manifest was looked for the last time, before that."""

    def newest(self, known: FileManifest | None = None) -> FileManifest | None:
        """The newest manifest; None before the first commit. `known`: one that this dataset gave, or committed: then
        only those behind it are looked for. Reads one manifest, whatever the number of commits.
        """
        now = self._clock()
        if known is not None and not self._may_be_swept(now):
            begin = known.version
        else:
            known = None
            last = self._merged.last_version()
            if last is None and self._size(0) is None:
                self._require_all_from(0)
                self._looked = now
                return None
            begin = 0 if last is None else last
        version = self._last_from(begin)
        if known is not None and self._size(version) is None:
            # Somebody has set the directory back to a moment before it.
            return self.newest()
        self._looked = now
        # Not as it is known: it may have been set back, and made anew by another writer.
        return self._read(version)

    def manifests(self) -> Sequence[FileManifest]:
        """The manifests of all commits, oldest first; those of many commits merged. Errors: `EncodeError` where some of
        them are gone.
        """
        found: list[FileManifest] = []
        version = 0
        for span in self._merged.cover():
            if span.first != version:
                raise self._gone(version, span.first - 1)
            found.append(self._merged.read(span))
            version = span.last + 1
        while True:
            while self._size(version) is not None:
                found.append(self._read(version))
                version += 1
            if not self._require_all_from(version):
                return found

    def require_whole(self) -> None:
        """Look whether manifests are gone, before another one is made in their place: then nothing would tell. Reads
        none. Errors: `EncodeError`.
        """
        version = 0
        for span in self._merged.cover():
            if span.first != version:
                raise self._gone(version, span.first - 1)
            version = span.last + 1
        self._require_all_from(version)

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
        looked = self._looked
        # A client that repeats a request whose answer was lost is told that the name exists: it may be our own.
        path = manifest_path(manifest.version)
        if not self.place.publish(path, manifest.to_bytes()) and self._read(manifest.version).writer != manifest.writer:
            return False
        if self._may_be_swept(self._clock(), looked) and self._has_merged_another(manifest):
            # Its name was free again: others have made this version, and it was merged and swept, long ago.
            self.place.remove(path)
            return False
        if self._is_merged and (manifest.version + 1) % FAN_OUT == 0:
            self.merge(manifest.version)
        return True

    def merge(self, last_version: int) -> None:
        """Merge the manifests up to a version that is there, as far as they can be."""
        try:
            self._merged.merge(last_version, self._read)
        except Unavailable:
            # What is committed is committed: whoever makes one of the next versions merges these as well.
            return

    def sweep(self, *, grace: timedelta = GRACE) -> tuple[str, ...]:
        """Remove files that no manifest names and that are older than `grace`; their paths. Manifests that merged ones
        have had for a day are removed, too.
        """
        old = [path for path in self.place.names("") if _DATA.fullmatch(path) and self._is_old(path, grace)]
        # Read after the files: what was committed meanwhile is named by now.
        named = {file.path for manifest in self.manifests() for file in manifest.files}
        orphans = tuple(path for path in old if path not in named)
        for path in orphans:
            self.place.remove(path)
        self._merged.sweep(retention=GRACE, clock=self._clock)
        return orphans

    def _is_old(self, path: str, grace: timedelta) -> bool:
        written = self.place.modified(path)
        return written is not None and self._clock() - written >= grace

    def _require_all_from(self, version: int) -> bool:
        """True if a version is there by now. Errors: `EncodeError` where it, or one behind it, is gone, and others that
        came later are there.
        """
        found = (version_of(path) for path in self.place.names(FOLDER))
        listed = sorted(one for one in found if one is not None and one >= version)
        for one in listed:
            # A folder's listing may miss what is made meanwhile, and have what comes behind it.
            while version < one and self._size(version) is not None:
                version += 1
            if version < one:
                raise self._gone(version, one - 1)
            version = one + 1
        return bool(listed)

    def _gone(self, first: int, last: int) -> EncodeError:
        return EncodeError(
            f"manifests {first} to {last} of {self.place.url(FOLDER)} are gone, and later ones are there: nobody knows "
            "what they named",
            op="open",
            hint="Put them back from a copy. No lifecycle rule may remove manifests. Without a copy, export to another "
            f"directory; a pipeline has to start anew. {START_ELSEWHERE}",
        )

    def _last_from(self, version: int) -> int:
        """The last version, counted from one that was made: in steps that grow, and then shrink."""
        step = 1
        while self._size(version + step) is not None:
            version += step
            step *= 2
        while step > 1:
            step //= 2
            if self._size(version + step) is not None:
                version += step
        return version

    def _may_be_swept(self, now: datetime, looked: datetime | None = None) -> bool:
        """True if versions that came after the last look may be gone already, so that their names are free."""
        looked = looked or self._looked
        return looked is None or now - looked >= GRACE / 2

    def _has_merged_another(self, manifest: FileManifest) -> bool:
        """True if its version is merged, and is not this manifest. One without files cannot be told from another."""
        spans = [span for span in self._merged.cover() if span.first <= manifest.version <= span.last]
        merged = {file.path for span in spans for file in self._merged.read(span).files}
        return bool(spans) and (not manifest.files or any(file.path not in merged for file in manifest.files))

    def _size(self, version: int) -> int | None:
        return self.place.size(manifest_path(version))

    def _read(self, version: int) -> FileManifest:
        path = manifest_path(version)
        return FileManifest.from_bytes(self.place.read(path), self.place.url(path))

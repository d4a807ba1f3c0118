"""Merged manifests: what many commits added, in one file, so that no reader reads the manifest of each commit.

::

    _manifests/merged/<first version>-<last version>.json    the files of all these versions, the state of the last one

The manifests of ten commits are merged into one, ten of these into one again, up to ten thousand commits. A merged
manifest follows from those below it alone, so whoever makes it makes the same, and it does not matter who does, how
often, or who dies in between. Manifests below it are removed when it is older than a retention; of the versions that a
merged manifest has, a manifest that appears later does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from airflow_parallel_apply.pipeline.encode.files.manifest import FOLDER, FileManifest, manifest_path, version_of
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace

FAN_OUT: Final = 10
MERGED: Final = f"{FOLDER}/merged"

_SIZES: Final = tuple(FAN_OUT**level for level in range(1, 5))
"""Numbers of versions that one has."""

_NAME: Final = re.compile(rf"{MERGED}/(\d{{20}})-(\d{{20}})\.json")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Span:
    """The versions of a merged manifest. They begin at a multiple of their number, which is a power of `FAN_OUT`."""

    first: int
    last: int

    @property
    def path(self) -> str:
        """Below the place."""
        return f"{MERGED}/{self.first:020d}-{self.last:020d}.json"

    def has(self, other: Span) -> bool:
        """True if all versions of the other one are among these."""
        return self.first <= other.first and other.last <= self.last


class MergedManifests:
    """The merged manifests of a place. Errors: those of `FilePlace`, and of manifests."""

    def __init__(self, place: FilePlace) -> None:
        self._place = place

    def spans(self) -> list[Span]:
        """All that are there."""
        found = (_NAME.fullmatch(path) for path in self._place.names(MERGED))
        return sorted(Span(first=int(one[1]), last=int(one[2])) for one in found if one is not None)

    def last_version(self) -> int | None:
        """The last version that one of them has; None where there is none."""
        return max((span.last for span in self.spans()), default=None)

    def cover(self) -> list[Span]:
        """The fewest that have all versions which any of them has, ascending."""
        spans = self.spans()
        return [span for span in spans if not any(other != span and other.has(span) for other in spans)]

    def read(self, span: Span) -> FileManifest:
        return FileManifest.from_bytes(self._place.read(span.path), self._place.url(span.path))

    def merge(self, last_version: int, read: Callable[[int], FileManifest]) -> None:
        """Make all that can be made of the versions up to one that is there. `read`: the manifest of a version."""
        due = [size for size in _SIZES if (last_version + 1) % size == 0]
        if due and all(self._follows(last_version + 1 - size, size) for size in due):
            # As a rule: those before are there, and nothing has to be listed.
            for size in due:
                self._make(Span(first=last_version + 1 - size, last=last_version), read)
            return
        spans = self.spans()
        for size in _SIZES:
            begin = max((span.last + 1 for span in spans if span.last - span.first + 1 >= size), default=0)
            for first in range(begin, last_version + 2 - size, size):
                span = Span(first=first, last=first + size - 1)
                self._make(span, read)
                spans.append(span)

    def sweep(self, *, retention: timedelta, clock: Callable[[], datetime]) -> tuple[str, ...]:
        """Remove manifests that merged ones older than a retention have, but never that of the last version; their
        paths.
        """
        spans = self.spans()
        written = {span: self._place.modified(span.path) for span in spans}
        old = [span for span, at in written.items() if at is not None and clock() - at >= retention]
        if not old:
            return ()
        last = max(span.last for span in old)
        removed = [span.path for span in spans if any(other != span and other.has(span) for other in old)]
        for path in self._place.names(FOLDER):
            version = version_of(path)
            if version is not None and version < last:
                removed.append(manifest_path(version))
        for path in removed:
            self._place.remove(path)
        return tuple(removed)

    def _follows(self, first: int, size: int) -> bool:
        """True if the span of the same size before a version is there, or none is before it."""
        return first == 0 or self._place.size(Span(first=first - size, last=first - 1).path) is not None

    def _make(self, span: Span, read: Callable[[int], FileManifest]) -> None:
        part = (span.last + 1 - span.first) // FAN_OUT
        starts = range(span.first, span.last + 1, part)
        if part == 1:
            manifests = [read(version) for version in starts]
        else:
            manifests = [self.read(Span(first=start, last=start + part - 1)) for start in starts]
        # One that somebody else has made meanwhile is the same.
        self._place.publish(span.path, _merged(manifests, span).to_bytes())


def _merged(manifests: Sequence[FileManifest], span: Span) -> FileManifest:
    tables = {(table.table, table.relation_id, table.texts): table for one in manifests for table in one.tables}
    return replace(
        manifests[-1],
        first_version=span.first,
        tables=tuple(tables.values()),
        files=tuple(file for one in manifests for file in one.files),
    )

"""The snapshots of a directory: tables folded from its feed. They are a dataset of their own, below `_snapshots`.

Each version has all tables whole, as of one transaction: rows like those of the feed, of each key the last one, as an
insertion. So snapshot and feed are read alike: the files of the newest version, and of the feed's files the rows behind
it. `SNAPSHOT` is the position's name in its manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from airflow_parallel_apply.pipeline.encode.files.dataset import SNAPSHOTS, Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress

SNAPSHOT: Final = "snapshot"


def snapshots(address: FilesAddress, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Dataset:
    """The snapshots beside a feed."""
    return Dataset(replace(address, url=f"{address.url}/{SNAPSHOTS}").place(), clock=clock, is_merged=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files that have a directory's tables up to now. `seqno`: rows of the feed count behind it alone; `NO_SEQNO`
    without a snapshot. `snapshot`: its manifest, whose files lie below `_snapshots`.
    """

    snapshot: FileManifest | None
    feed: tuple[FileManifest, ...]

    @classmethod
    def of(cls, address: FilesAddress) -> Contents:
        """As they are now. The snapshot is read first: the feed has all that comes behind it."""
        newest = snapshots(address).newest()
        return cls(snapshot=newest, feed=tuple(Dataset(address.place()).manifests()))

    @property
    def seqno(self) -> int:
        return NO_SEQNO - 1 if self.snapshot is None else self.snapshot.positions[SNAPSHOT]

    @property
    def folded(self) -> tuple[DataFile, ...]:
        """The snapshot's files, by their paths below the directory."""
        files = () if self.snapshot is None else self.snapshot.files
        return tuple(replace(file, path=f"{SNAPSHOTS}/{file.path}") for file in files)

    def behind(self, last_seqno: int | None = None) -> Iterable[DataFile]:
        """The feed's files with rows behind the snapshot, up to a transaction; they may have others, too."""
        for manifest in self.feed:
            for file in manifest.files:
                if file.last_seqno > self.seqno and (last_seqno is None or file.first_seqno <= last_seqno):
                    yield file

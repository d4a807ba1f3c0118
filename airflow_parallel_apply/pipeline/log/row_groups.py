"""Row groups of a segment's file: which of them a reader needs, and which it needs whole.

Where all rows of a group are wanted, as the group's statistics tell, nothing is filtered: a channel by key, of which
row groups have nothing but its own buckets, costs no more than decoding.

Footers of files are kept, since many streams of a router read the same segments, each a few groups of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.log.schema import ROWS

Bounds: TypeAlias = tuple[int, int] | None
"""Least and greatest value of a column in a row group; None where its statistics do not tell."""

_BOUND_COLUMNS: Final = ("seqno", "bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The rows that a reader wants: seqnos of (after_seqno, last_seqno], of them fragnos above `after_fragno`, buckets
    from the first to the last, and nothing before the place (seqno, fragno) at which it goes on. `None`: any.
    """

    after_seqno: int
    last_seqno: int
    after_fragno: int | None = None
    buckets: tuple[int, int] | None = None
    start: tuple[int, int] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that `mask` looks at."""
        return ("seqno", "fragno") if self.buckets is None else ("seqno", "fragno", "bucket")

    def may_be_in(self, group: GroupBounds) -> bool:
        """False where no row of the group is wanted."""
        return _meet(group.seqnos, self._seqnos) and (self.buckets is None or _meet(group.buckets, self.buckets))

    def groups(self, footer: Footer) -> list[int]:
        """Numbers of the row groups that may have some of them."""
        return [number for number, group in enumerate(footer.groups) if self.may_be_in(group)]

    def has_all_of(self, group: GroupBounds) -> bool:
        """True if every row of the group is wanted."""
        return (
            self.after_fragno is None
            and self.start is None
            and _lies_in(group.seqnos, self._seqnos)
            and (self.buckets is None or _lies_in(group.buckets, self.buckets))
        )

    def shares(self, group: GroupBounds) -> bool:
        """True if others are likely to want the rest of the group: it differs by buckets alone, as channels do."""
        return (
            self.buckets is not None
            and self.after_fragno is None
            and self.start is None
            and _lies_in(group.seqnos, self._seqnos)
            and not _lies_in(group.buckets, self.buckets)
        )

    def mask(self, rows: pa.Table) -> pa.Array:
        """True for each row that is wanted."""
        seqnos, fragnos = _numbers(rows, "seqno"), _numbers(rows, "fragno")
        found = (seqnos > self.after_seqno) & (seqnos <= self.last_seqno)
        if self.after_fragno is not None:
            found &= fragnos > self.after_fragno
        if self.buckets is not None:
            buckets = _numbers(rows, "bucket")
            found &= (buckets >= self.buckets[0]) & (buckets <= self.buckets[1])
        if self.start is not None:
            seqno, fragno = self.start
            found &= (seqnos > seqno) | ((seqnos == seqno) & (fragnos >= fragno))
        return pa.array(found)

    @property
    def _seqnos(self) -> tuple[int, int]:
        return self.after_seqno + 1, self.last_seqno


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """The seqnos and buckets between which the rows of a group lie."""

    seqnos: Bounds
    buckets: Bounds


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a row file, the names of its columns, and the bounds of its row groups."""

    metadata: pq.FileMetaData
    names: frozenset[str]
    groups: tuple[GroupBounds, ...]

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> Footer:
        """Look at the statistics of a file."""
        places = [ROWS.get_field_index(name) for name in _BOUND_COLUMNS]
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return cls(
            metadata,
            frozenset(metadata.schema.names),
            tuple(GroupBounds(*(_bounds(group, place) for place in places)) for group in groups),
        )


@dataclass(slots=True)
class Footers:
    """The footers that were needed last. Thread-safe. `most`: how many are kept; one of 64 row groups takes a quarter
    of a megabyte.
    """

    most: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: OrderedDict[tuple[str, str], Footer] = field(default_factory=OrderedDict)

    def get(self, path: str, checksum: str) -> Footer | None:
        """The footer of a file with this checksum, where it is kept."""
        with self._lock:
            found = self._kept.get((path, checksum))
            if found is not None:
                self._kept.move_to_end((path, checksum))
            return found

    def keep(self, path: str, checksum: str, footer: Footer) -> None:
        """Keep it for the next."""
        with self._lock:
            self._kept[path, checksum] = footer
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)


def _bounds(group: pq.RowGroupMetaData, place: int) -> Bounds:
    found = group.column(place).statistics
    return None if found is None or not found.has_min_max else (int(found.min), int(found.max))


def _meet(bounds: Bounds, wanted: tuple[int, int]) -> bool:
    return bounds is None or (bounds[0] <= wanted[1] and bounds[1] >= wanted[0])


def _lies_in(bounds: Bounds, wanted: tuple[int, int]) -> bool:
    return bounds is not None and wanted[0] <= bounds[0] and bounds[1] <= wanted[1]


def _numbers(rows: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(rows.column(name).to_numpy())

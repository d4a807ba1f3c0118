"""Reads a log in a directory: `DirectoryLogReader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import RESTORE, LogDirectory, file_errors
from airflow_parallel_apply.pipeline.log.identity import read_identity
from airflow_parallel_apply.pipeline.log.manifest_file import NewestView
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity, LogState, Segment
from airflow_parallel_apply.pipeline.log.row_groups import Footer, Footers, Wanted
from airflow_parallel_apply.pipeline.log.schema import ROWS, STORED, TRANSACTIONS
from airflow_parallel_apply.pipeline.log.segment import read_transactions, verify_segment
from airflow_parallel_apply.pipeline.log.shared_groups import SharedGroups
from airflow_parallel_apply.pipeline.log.verified import VerifiedFiles

_BATCH_ROWS: Final = 65_536

_verified: Final[set[tuple[str, str]]] = set()
"""(path, checksum) of the segments that this process has verified; they are immutable."""

_on_this_host: Final = VerifiedFiles()

_footers: Final = Footers(most=32)
_shared: Final = SharedGroups(64 * 2**20)
"""Both of this process."""


class DirectoryLogReader:
    """Implements `LogReader`. Any number of them may read while a writer writes; threads may share one."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._identity = read_identity(directory)
        self._newest = NewestView(directory)

    @property
    def identity(self) -> LogIdentity:
        return self._identity

    @property
    def root(self) -> Path:
        return self._directory.root

    @property
    def router(self) -> None:
        return None

    def state(self) -> LogState:
        return self._newest.look().state

    def verify(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            known = (str(self._directory.rows_path(segment.name)), segment.checksum)
            if known not in _verified:
                path = self._directory.rows_path(segment.name)
                if not _on_this_host.knows(path, segment.checksum):
                    verify_segment(self._directory, segment)
                    _on_this_host.add(path, segment.checksum)
                _verified.add(known)

    def row_files(self, after_seqno: int, last_seqno: int) -> tuple[str, ...]:
        """Checks that the files are there and have their size: a reader elsewhere would name Spark's task, not why."""
        files = []
        for segment in self._segments(after_seqno, last_seqno):
            if not segment.row_count:
                continue
            path = self._directory.rows_path(segment.name)
            with file_errors(path):
                size = path.stat().st_size
            if size != segment.file_bytes:
                raise LogError(
                    f"{path} has {size} bytes instead of {segment.file_bytes}",
                    hint=RESTORE,
                )
            files.append(str(path))
        return tuple(files)

    def transactions(self, after_seqno: int, last_seqno: int) -> pa.Table:
        segments = self._segments(after_seqno, last_seqno, is_whole=False)
        tables = [read_transactions(self._directory, segment) for segment in segments]
        if not tables:
            return TRANSACTIONS.empty_table()
        return pa.concat_tables(tables).filter(
            (pc.field("seqno") > after_seqno) & (pc.field("seqno") <= last_seqno),
        )

    def rows(
        self,
        after_seqno: int,
        last_seqno: int,
        *,
        columns: Sequence[str] | None = None,
        in_order: bool = False,
        after_fragno: int | None = None,
        buckets: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Memory: the wanted columns of one segment with `in_order`, of one row group without; beside it up to 64 MB of
        row groups that readers of other buckets want as well.
        """
        names = list(ROWS.names if columns is None else columns)
        wanted = Wanted(after_seqno=after_seqno, last_seqno=last_seqno, after_fragno=after_fragno, buckets=buckets)
        read = sorted({*names, *wanted.columns})
        pending = deque(self._segments(after_seqno, last_seqno))
        while pending:
            segment = pending.popleft()
            if not segment.row_count:
                continue
            try:
                self.verify([segment])
                footer = self._footer(segment)
                if not wanted.groups(footer):
                    continue
                file = self._open(segment, footer)
            except LogError:
                # Whoever takes the rows may take longer than the files of merged segments stay.
                if segment in self.state().segments:
                    raise
                pending = deque(self._segments(max(after_seqno, segment.first_seqno - 1), last_seqno))
                wanted = replace(wanted, start=(segment.first_seqno, segment.first_fragno))
                continue
            kept = self._row_groups(segment, file, footer, read, wanted)
            for table in _sorted(kept) if in_order else kept:
                yield from table.select(names).combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)

    def _segments(self, after_seqno: int, last_seqno: int, *, is_whole: bool = True) -> list[Segment]:
        """`is_whole`: with all rows. Of a transaction that was purged in part, what tells of it is at its end."""
        state = self.state()
        if last_seqno > after_seqno:
            state.require_kept(
                after_seqno if is_whole or not state.segments else after_seqno + state.segments[0].is_cut
            )
        return [
            segment
            for segment in state.segments
            if segment.last_seqno > after_seqno and segment.first_seqno <= last_seqno
        ]

    def _footer(self, segment: Segment) -> Footer:
        path = self._directory.rows_path(segment.name)
        kept = _footers.get(str(path), segment.checksum)
        if kept is None:
            with file_errors(path):
                kept = Footer.of(pq.read_metadata(path))
            _footers.keep(str(path), segment.checksum, kept)
        return kept

    def _open(self, segment: Segment, footer: Footer) -> pq.ParquetFile:
        path = self._directory.rows_path(segment.name)
        with file_errors(path):
            return pq.ParquetFile(path, metadata=footer.metadata)

    def _row_groups(
        self, segment: Segment, file: pq.ParquetFile, footer: Footer, columns: list[str], wanted: Wanted
    ) -> Iterator[pa.Table]:
        """The wanted rows of each row group that may have some."""
        path = self._directory.rows_path(segment.name)
        with file_errors(path), file:
            for number in wanted.groups(footer):
                group = footer.groups[number]
                decode = partial(_decode, file, footer, number, columns)
                if wanted.has_all_of(group):
                    yield decode()
                elif wanted.shares(group):
                    key = (path, segment.checksum, number, *columns)
                    yield _shared.take(key, wanted, decode)
                else:
                    part = decode()
                    yield part.filter(wanted.mask(part))


def _decode(file: pq.ParquetFile, footer: Footer, number: int, columns: list[str]) -> pa.Table:
    """A row group; null where an older file has no such column."""
    part = file.read_row_group(number, columns=[name for name in columns if name in footer.names])
    for name in columns:
        if name not in footer.names:
            part = part.append_column(name, pa.nulls(part.num_rows, STORED.field(name).type))
    return part.select(columns).cast(pa.schema([STORED.field(name) for name in columns]))


def _sorted(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all parts by (seqno, fragno), in slices, so that a caller's copy of them is small."""
    tables = list(parts)
    if not tables:
        return
    rows = pa.concat_tables(tables).combine_chunks()
    order = np.lexsort((rows.column("fragno").to_numpy(), rows.column("seqno").to_numpy()))
    for start in range(0, len(order), _BATCH_ROWS):
        yield rows.take(pa.array(order[start : start + _BATCH_ROWS]))

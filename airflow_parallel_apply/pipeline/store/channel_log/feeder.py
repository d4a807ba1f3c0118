"""Fills the channel logs of one pipeline: buffers for all channels, one file at a time for each.

However many channels there are, rows are written in the same large pieces: they are kept in memory until all channels
together have `BUFFER_BYTES` of them, and then each file gets one row group.

A crash leaves files that no stretch names, and stretches whose files are gone: the first are swept later, the second
are served by the log.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import file_errors
from airflow_parallel_apply.pipeline.log.mark import Mark, mark_of
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.store.channel_log.directory import (
    ChannelDirectory,
    Held,
    name_of,
    owner_of,
)
from airflow_parallel_apply.pipeline.store.channel_log.file import ChannelWriter
from airflow_parallel_apply.pipeline.store.channel_log.held import held_status
from airflow_parallel_apply.pipeline.store.protocol import Split, StoreStatus, Stretch

BUFFER_BYTES: Final = 64 * 2**20
"""The size of the rows that may wait to be written, of all channels together."""

LEFT_SECONDS: Final = 3600.0
"""Age from which a file that nothing names is one that a crash has left; no stretch takes that long."""


class ChannelLogFeeder:
    """See `Feeder`."""

    def __init__(
        self,
        directory: ChannelDirectory,
        log: LogReader,
        *,
        pipeline: str,
        channels: int,
        buffer_bytes: int = BUFFER_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._log = log
        self._pipeline = pipeline
        self._channels = channels
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._waiting: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._waiting_bytes = 0
        self._writers: dict[int, ChannelWriter] = {}

    def lacks(self, stretch: Stretch) -> tuple[Stretch, ...]:
        self._forget_other_histories()
        lacking = []
        reached = stretch.after_seqno
        for held in self._directory.stretches():
            if held.last_seqno <= reached:
                continue
            if held.after_seqno >= stretch.last_seqno:
                break
            if held.after_seqno > reached:
                lacking.append(Stretch(reached, held.after_seqno))
            reached = held.last_seqno
        if reached < stretch.last_seqno:
            lacking.append(Stretch(reached, stretch.last_seqno))
        return tuple(lacking)

    def feed(self, stretch: Stretch, split: Split) -> int:
        # Before its rows: a log that is restored meanwhile has another one.
        mark = mark_of(self._log, stretch.last_seqno)
        if mark is None:
            raise LogError(f"the log does not have transaction {stretch.last_seqno}")
        rows = 0
        for channel, batch in split():
            self.put(stretch, channel, [batch])
            rows += batch.num_rows
        self.finish(stretch, mark)
        return rows

    def put(self, stretch: Stretch, channel: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Add `ROWS` of a stretch in one channel, in any order; nobody reads them before `finish`. Errors:
        `LogError`.
        """
        if not self._writers and not self._waiting_bytes:
            self._directory.create(self._pipeline, self._channels)
        for batch in batches:
            if batch.num_rows:
                self._waiting[channel].append(batch)
                self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._buffer_bytes:
            self._flush(stretch)

    def finish(self, stretch: Stretch, mark: Mark) -> bool:
        """Hold the stretch: every row of every channel was put. `mark`: of its last transaction, looked up before they
        were read. False where another feeder was faster; then what was put is gone. Errors: `LogError`.
        """
        self._directory.create(self._pipeline, self._channels)
        self._flush(stretch)
        files = {channel: writer.finish() for channel, writer in self._writers.items()}
        if self._directory.hold(Held(stretch=stretch, mark=mark, files=files)):
            self._writers.clear()
            return True
        self.abandon()
        return False

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()
        self._writers.clear()
        self._waiting.clear()
        self._waiting_bytes = 0

    def trim(self, positions: Sequence[Position]) -> int:
        committed = {position.channel: position.seqno for position in positions}
        low = low_watermark(positions)
        named: set[Path] = set()
        removed = 0
        for stretch in self._directory.stretches():
            try:
                held = self._directory.read(stretch)
            except LogError:
                # Damaged, or another feeder's trim was faster.
                self._directory.forget(stretch)
                continue
            if stretch.last_seqno <= low:
                self._directory.forget(stretch)
            for channel, file in held.files.items():
                path = self._directory.path(channel, file)
                if stretch.last_seqno <= committed.get(channel, low):
                    removed += _remove(path)
                else:
                    named.add(path)
        self._sweep(named)
        return removed

    def status(self) -> StoreStatus:
        return held_status(self._directory, self._channels)

    def close(self) -> None:
        """Holds nothing open."""

    def _forget_other_histories(self) -> None:
        """Forget what is of transactions that the log has lost, or damaged: the newest stretches, down to one that is
        of the log's history. Errors: `LogError`.
        """
        for stretch in reversed(self._directory.stretches()):
            with suppress(LogError):
                if mark_of(self._log, stretch.last_seqno) == self._directory.read(stretch).mark:
                    return
            self._directory.forget(stretch)

    def _flush(self, stretch: Stretch) -> None:
        for channel, batches in sorted(self._waiting.items()):
            if channel not in self._writers:
                name = f"{name_of(stretch)}-{uuid4().hex[:12]}.parquet"
                self._writers[channel] = ChannelWriter(self._directory.channel(channel) / name)
            self._writers[channel].write(batches)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _sweep(self, named: set[Path]) -> None:
        """Remove what crashes left: here, and of routings that the pipeline had before."""
        folders = self._directory.root.parent
        with file_errors(folders):
            if not folders.exists():
                return
            if self._directory.root.exists():
                os.utime(self._directory.root)
            for root in folders.iterdir():
                if root == self._directory.root:
                    for path in root.glob("*/*.parquet"):
                        if path not in named and self._is_left(path):
                            _remove(path)
                elif owner_of(root) == self._pipeline and self._is_left(root):
                    shutil.rmtree(root, ignore_errors=True)

    def _is_left(self, path: Path) -> bool:
        try:
            return self._clock() - path.stat().st_mtime >= LEFT_SECONDS
        except FileNotFoundError:
            return False


def _remove(path: Path) -> int:
    with file_errors(path):
        is_there = path.exists()
        path.unlink(missing_ok=True)
    return int(is_there)

"""The store `channel_log`, as the process that stages sees it: a channel's own files, which need no filter by channel.

Whatever is not held whole, not there, or not as it was written is served by the log, unit by unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import file_errors
from airflow_parallel_apply.pipeline.log.mark import mark_of
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.log.verified import VerifiedFiles
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import Branch, GroupPart, Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.channel_log.directory import ChannelDirectory, ChannelFile, Held, chain
from airflow_parallel_apply.pipeline.store.even_ranges import even_ranges
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import ALL_ROWS, FileBranch, StoreBranch

_verified: Final[set[tuple[str, str]]] = set()
"""(path, checksum) of what this process has verified; files do not change."""

_on_this_host: Final = VerifiedFiles()


class ChannelLogStore:
    """See `Store`. Thread-safe where the reader is."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._behind = LogStore(log)

    def branch(self, unit: Unit, *, parts: int = 1) -> StoreBranch:
        channel = unit.channel
        if channel is not None and isinstance(unit.kind, Branch | GroupPart):
            with suppress(LogError):
                directory = self._directory(unit)
                held = _held(directory, self._log, channel, unit)
                files = tuple(_verified_path(directory, channel, one.files[channel]) for one in held)
                if files:
                    return FileBranch(
                        files=files,
                        after_seqno=unit.after_seqno,
                        last_seqno=unit.last_seqno,
                        condition=ALL_ROWS,
                        ranges=_ranges(files, held, unit, parts) if parts > 1 else (),
                    )
        return self._behind.branch(unit, parts=parts)

    def doubt(self, unit: Unit) -> None:
        directory = self._directory(unit)
        with suppress(LogError):
            for stretch in directory.stretches():
                if stretch.last_seqno > unit.after_seqno and stretch.after_seqno < unit.last_seqno:
                    directory.forget(stretch)

    def close(self) -> None:
        """Holds nothing open."""

    def _directory(self, unit: Unit) -> ChannelDirectory:
        return ChannelDirectory.of_pipeline(self._log, unit.pipeline, unit.routing or Routing(channels=unit.channels))


def _held(directory: ChannelDirectory, log: LogReader, channel: int, unit: Unit) -> list[Held]:
    """The stretches with rows of the channel, of those that hold the unit; none unless all are of the log's history,
    and may have as many rows as the plan counts. Errors: `LogError`.
    """
    found = [directory.read(one) for one in chain(directory.stretches(), unit.after_seqno, unit.last_seqno)]
    held = [one for one in found if channel in one.files]
    if not held or any(mark_of(log, one.stretch.last_seqno) != one.mark for one in found):
        return []
    rows = sum(one.files[channel].row_count for one in held)
    is_whole = (found[0].stretch.after_seqno, found[-1].stretch.last_seqno) == (unit.after_seqno, unit.last_seqno)
    return held if rows == unit.row_count or (rows > unit.row_count and not is_whole) else []


def _ranges(files: Sequence[str], held: Sequence[Held], unit: Unit, parts: int) -> tuple[tuple[int, int], ...]:
    """As the store `log` divides them: a channel's rows where they are more than those of others."""
    rows = sum(file.row_count for one in held for file in one.files.values())
    own = sum(one.files[unit.channel].row_count for one in held if unit.channel is not None)
    parts = min(parts, round(own * unit.channels / rows))
    if parts < 2:
        return ()
    found = np.zeros(BUCKET_COUNT, dtype=np.int64)
    wanted = (pc.field("seqno") > unit.after_seqno) & (pc.field("seqno") <= unit.last_seqno)
    for file in files:
        buckets = pq.read_table(file, columns=["bucket"], filters=wanted).column("bucket").to_numpy()
        found += np.bincount(buckets, minlength=BUCKET_COUNT)
    return even_ranges(found, parts)


def _verified_path(directory: ChannelDirectory, channel: int, file: ChannelFile) -> str:
    """Errors: `LogError` for a file that is gone, or is not as it was written."""
    path = directory.path(channel, file)
    with file_errors(path):
        size = path.stat().st_size
    if size != file.file_bytes:
        raise LogError(f"{path} has {size} bytes instead of {file.file_bytes}")
    known = (str(path), file.checksum)
    if known not in _verified:
        if not _on_this_host.knows(path, file.checksum):
            if _checksum(path) != file.checksum:
                raise LogError(f"{path} does not match its checksum")
            _on_this_host.add(path, file.checksum)
        _verified.add(known)
    return str(path)


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with file_errors(path), path.open("rb") as content:
        while part := content.read(2**22):
            digest.update(part)
    return digest.hexdigest()

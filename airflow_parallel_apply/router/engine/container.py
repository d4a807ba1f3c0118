"""The container on disk of one output: rows that have no room in memory, until they are read.

Each batch is an Arrow IPC stream by itself, so that it can be read from its place alone, whatever its schema, and is
compressed by LZ4: rows of a log then take a quarter of the disk, and of the page cache, at about 1 GB/s of a core.
Uncompressed it is twice as fast, which few disks are; the log's own segment writer halves the size once more and is
three to four times slower (`python -m benchmarks router` prints them).

Files have no name: no crash leaves one behind, not even `kill -9`.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import SpillFull
from airflow_parallel_apply.router.engine.budget import SharedBytes

_OPTIONS: Final = pa.ipc.IpcWriteOptions(
    # Below zero LZ4 looks less closely: a quarter faster, and a tenth larger.
    compression=pa.Codec("lz4", compression_level=-5),
    # In the thread that writes, beside those that route and read.
    use_threads=False,
)

FILE_BYTES: Final = 32 * 2**20
"""Size from which another file is begun: disk is given back file by file."""


class _File:
    """One spill file and the number of places in it that are not free."""

    __slots__ = ("file", "live", "size_bytes")

    def __init__(self, directory: Path) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # closed by `close`
        self.size_bytes = 0
        self.live = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch is."""

    file: _File
    offset: int
    size_bytes: int


class Container:
    """Thread-safe. Holds no descriptor while it is empty."""

    def __init__(self, directory: Path, disk: SharedBytes, *, file_bytes: int = FILE_BYTES) -> None:
        self._directory = directory
        self._disk = disk
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._files: list[_File] = []
        self._is_closed = False
        self.disk_bytes = 0
        self.high_disk_bytes = 0

    def write(self, batch: pa.RecordBatch) -> Place | None:
        """Spill a batch; None where everything was let go of meanwhile. Errors: `SpillFull` where the budget is spent,
        or the disk.
        """
        content = _serialized(batch)
        size = len(content)
        with self._lock:
            if self._is_closed:
                return None
            if not self._disk.take(size, held_bytes=self.disk_bytes):
                raise SpillFull(
                    f"the router's disk budget of {self._disk.limit_bytes / 2**20:,.0f} MB is spent: "
                    f"{self._disk.used_bytes / 2**20:,.0f} MB are used, {self.disk_bytes / 2**20:,.0f} MB of them by "
                    "the output that asks for more",
                    op="spill",
                    hint="Give the router more disk, or look for why the channel's consumer does not read.",
                )
            self.disk_bytes += size
            self.high_disk_bytes = max(self.high_disk_bytes, self.disk_bytes)
            file = self._current()
            place = Place(file, file.size_bytes, size)
            # Counted before it is written: whatever happens, closing the file gives all of it back.
            file.size_bytes += size
            file.live += 1
            try:
                _write(file.file, content, place.offset)
            except OSError as error:
                raise SpillFull(
                    f"the router cannot spill to {self._directory}: {error}", op="spill", hint="Free disk there."
                ) from error
            return place

    def read(self, place: Place) -> pa.RecordBatch | None:
        """Read a batch back; None where it was let go of meanwhile."""
        with self._lock:
            # Under the lock, since a closed file's descriptor may be another's by now.
            if place.file.file.closed:
                return None
            content = os.pread(place.file.file.fileno(), place.size_bytes, place.offset)
        return pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()

    def free(self, place: Place) -> None:
        """Let go of a batch. Its file goes with the last of its batches."""
        with self._lock:
            place.file.live -= 1
            if not place.file.live and not place.file.file.closed:
                self._close(place.file)
                self._files.remove(place.file)

    def close(self) -> None:
        """Let go of everything, for good."""
        with self._lock:
            self._is_closed = True
            for file in self._files:
                self._close(file)
            self._files.clear()

    def _current(self) -> _File:
        if not self._files or self._files[-1].size_bytes >= self._file_bytes:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._files.append(_File(self._directory))
        return self._files[-1]

    def _close(self, file: _File) -> None:
        file.file.close()
        self.disk_bytes -= file.size_bytes
        self._disk.change(-file.size_bytes)


def _serialized(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _write(file: IO[bytes], content: Any, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(file.fileno(), left, offset)
        left = left[written:]
        offset += written

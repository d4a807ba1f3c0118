"""Writes the file of one channel: row group after row group, sequentially, its checksum on the way."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import xxhash

from airflow_parallel_apply.pipeline.log.directory import file_errors
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.log.segment import rows_writer
from airflow_parallel_apply.pipeline.store.channel_log.directory import ChannelFile


class _Counted(io.RawIOBase):
    """A file that only grows, and knows its checksum."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("xb", buffering=0)
        self.digest = xxhash.xxh3_128()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        data = memoryview(content).cast("B")  # type: ignore[arg-type]
        left = data
        while left:
            left = left[self._file.write(left) :]
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class ChannelWriter:
    """One file. It is not synced: a file that a crash has torn does not match its checksum, and the log serves its
    rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = 0
        with file_errors(path):
            self._sink = _Counted(path)
            self._writer = rows_writer(pa.PythonFile(self._sink, mode="w"), ROWS)

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Add a row group. Errors: `LogError`."""
        rows = pa.Table.from_batches(batches, schema=ROWS)
        with file_errors(self._path):
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._rows += rows.num_rows

    def finish(self) -> ChannelFile:
        """Errors: `LogError`."""
        with file_errors(self._path):
            self._writer.close()
            self._sink.close()
        return ChannelFile(
            name=self._path.name,
            row_count=self._rows,
            file_bytes=self._sink.size,
            checksum=self._sink.digest.hexdigest(),
        )

    def abandon(self) -> None:
        """Close and remove the file. Errors: none that matter."""
        try:
            self._writer.close()
        except (OSError, pa.ArrowException):
            pass
        finally:
            self._sink.close()
            self._path.unlink(missing_ok=True)

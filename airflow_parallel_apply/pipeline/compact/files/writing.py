"""Writing a snapshot's files. Nobody reads one before a manifest names it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.open import open_encoder

_FILE_BYTES: Final = 128 * 2**20
"""Size of a file's rows in memory."""


class SnapshotWriter:
    """Writes the files of one attempt. Used once, by one thread."""

    def __init__(self, dataset: Dataset, format_: Format) -> None:
        self._dataset = dataset
        self._format = format_
        self._attempt = uuid.uuid4().hex
        self.files: list[DataFile] = []

    def write(self, typing: RowTyping, relation_id: int, batches: Iterable[pa.RecordBatch]) -> int:
        """Write a table; the number of its rows. Errors: those of `batches` and of `FilePlace`."""
        held: list[pa.RecordBatch] = []
        count = size = 0
        for batch in batches:
            held.append(batch)
            count, size = count + batch.num_rows, size + batch.nbytes
            if size >= _FILE_BYTES:
                self._file(typing, relation_id, held)
                held, size = [], 0
        if any(batch.num_rows for batch in held):
            self._file(typing, relation_id, held)
        return count

    def discard(self) -> None:
        """Remove what was written; nobody has named it."""
        for file in self.files:
            self._dataset.place.remove(file.path)

    def _file(self, typing: RowTyping, relation_id: int, batches: list[pa.RecordBatch]) -> None:
        encoder = open_encoder(self._format, typing)

        def content() -> Iterator[bytes]:
            yield encoder.head()
            yield from encoder.body(batches)
            yield encoder.tail()

        rows = pa.Table.from_batches(batches)
        seqnos = pc.min_max(rows.column(len(typing.columns) + 1)).as_py()
        path = self._dataset.data_path(
            typing.table, relation_id, f"{self._attempt}-{len(self.files):06d}{encoder.suffix}"
        )
        size, checksum = self._dataset.write(path, content())
        self.files.append(
            DataFile(
                path=path,
                table=typing.table,
                relation_id=relation_id,
                rows=rows.num_rows,
                bytes_=size,
                first_seqno=seqnos["min"],
                last_seqno=seqnos["max"],
                checksum=checksum,
            )
        )

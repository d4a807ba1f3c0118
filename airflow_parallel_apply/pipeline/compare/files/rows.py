"""A feed's rows for a comparison: what each table has after all changes that its directory's manifests name, and those
that its newest snapshot has.

A table is found by its name; what it was called before its files say, and they are those of another table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.compare.feed import Changes, changes_of, current_rows
from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.encode.decode import decoded
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.encode.files.schemas import FileSchemas
from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.snapshots import Contents

_BATCH_ROWS: Final = 100_000


class FilesRows:
    """See `ComparedRows`. All changes behind the snapshot of the table that is read are in memory, and its rows."""

    def __init__(self, name: str, address: FilesAddress) -> None:
        self.name = name
        self._place = address.place()
        contents = Contents.of(address)
        self._files = [
            *((file, None) for file in contents.folded),
            *((file, contents.seqno) for file in contents.behind()),
        ]
        self._columns: dict[str, set[str]] = {}
        manifests = (*contents.feed, *([] if contents.snapshot is None else [contents.snapshot]))
        self._schemas = FileSchemas(manifests)
        for manifest in manifests:
            for schema in manifest.tables:
                self._columns.setdefault(schema.table, set()).update(name for name, _ in schema.columns)

    def tables(self) -> list[SourceTable]:
        raise NotImplementedError("a directory of files is no source")

    def having(self, table: SourceTable) -> SourceTable:
        """Files compute nothing: a column that the source computes, and does not send, is missed by nobody."""
        here = self._columns.get(table.name, set())
        generated = [name for name in table.generated if name in here]
        return table.with_generated(generated)

    def batches(self, table: SourceTable) -> Iterator[pa.RecordBatch]:
        found = [self._read(file, table, behind) for file, behind in self._files if file.table == table.name]
        if not found:
            return
        yield from current_rows(found, table).to_batches(max_chunksize=_BATCH_ROWS)

    def cancel(self) -> None:
        """A file is read in a moment."""

    def _read(self, file: DataFile, table: SourceTable, behind: int | None) -> Changes:
        try:
            schema = self._schemas.of(file)
        except EncodeError as error:
            raise TableRefused(error.message) from error
        batches = decoded(file.path, self._place.read(file.path), schema, batch_rows=_BATCH_ROWS)
        read = pa.Table.from_batches(batches)
        names = read.column_names[-len(CHANGE) :]
        if behind is not None:
            read = read.filter(pc.greater(read.column(names[CHANGE.get_field_index("_seqno")]), behind))
        return changes_of(read, table, names, self._schemas.key_of(file))


@contextmanager
def open_files_rows(endpoint: Endpoint, name: str) -> Iterator[ComparedRows]:
    """The rows that manifests name when it is opened. Errors: those of `FilePlace`."""
    yield FilesRows(name, FilesAddress.parse(endpoint.url))

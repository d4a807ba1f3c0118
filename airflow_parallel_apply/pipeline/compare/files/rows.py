"""A feed's rows for a comparison: what each table has after all changes that its directory's manifests name, and those
that its newest snapshot has.

A table is found by its name; what it was called before its files say, and they are those of another table.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.snapshots import Contents

_BATCH_ROWS: Final = 100_000
_CHANGES: Final = tuple(CHANGE.names)


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
        for manifest in (*contents.feed, *([] if contents.snapshot is None else [contents.snapshot])):
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
        changes = pa.concat_tables(found).sort_by([("_seqno", "ascending"), ("_fragno", "ascending")])
        changes = _behind_last_truncate(changes.combine_chunks())
        current = _by_key(changes, table) if table.key is not None else _as_multiset(changes, table)
        yield from current.select(table.columns).to_batches(max_chunksize=_BATCH_ROWS)

    def cancel(self) -> None:
        """A file is read in a moment."""

    def _read(self, file: DataFile, table: SourceTable, behind: int | None) -> pa.Table:
        content = io.BytesIO(self._place.read(file.path))
        if file.path.endswith(".parquet"):
            read = pq.read_table(content)
        elif file.path.endswith(".arrow"):
            read = pa.ipc.open_file(content).read_all()
        else:
            raise TableRefused(f"{file.path} is neither Parquet nor Arrow, which alone are compared")
        # A table that has a column of such a name itself has these with more underscores in front.
        marks = dict(zip(_CHANGES, read.column_names[-len(_CHANGES) :], strict=True))
        columns = {name: _texts_of(read, name) for name in table.columns}
        found = pa.table({**columns, **{name: read.column(mark) for name, mark in marks.items()}})
        return found if behind is None else found.filter(pc.greater(found.column("_seqno"), behind))


def _texts_of(read: pa.Table, name: str) -> pa.Array:
    if name not in read.column_names[: -len(_CHANGES)]:
        return pa.nulls(len(read), pa.string())
    return texts(read.column(name).combine_chunks()).cast(pa.string())


def _behind_last_truncate(changes: pa.Table) -> pa.Table:
    found = np.flatnonzero(pc.equal(changes.column("_operation"), "truncate").to_numpy(zero_copy_only=False))
    return changes.slice(int(found[-1]) + 1) if len(found) else changes


def _by_key(changes: pa.Table, table: SourceTable) -> pa.Table:
    """The last change of each key decides."""
    if pc.any(pc.is_valid(changes.column("_unsent"))).as_py():
        changes = _with_unsent(changes, table)
    keys = pc.binary_join_element_wise(*(changes.column(name) for name in table.key or ()), "\0")
    codes = keys.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, from_the_end = np.unique(codes[::-1], return_index=True)
    last = changes.take(pa.array(len(codes) - 1 - from_the_end))
    return last.filter(pc.not_equal(last.column("_operation"), "delete"))


def _with_unsent(changes: pa.Table, table: SourceTable) -> pa.Table:
    """Values that were not sent are those of the row before, which may have had another key."""
    rows = changes.to_pylist()
    last: dict[tuple[str | None, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in table.key or ())
        former = key if row["_old_key"] is None else tuple(values_of(row["_old_key"]))
        for name in json.loads(row["_unsent"] or "[]"):
            if name in row and former in last:
                row[name] = last[former][name]
        if row["_operation"] != "delete":
            last[key] = row
    return pa.Table.from_pylist(rows, schema=changes.schema)


def _as_multiset(changes: pa.Table, table: SourceTable) -> pa.Table:
    counts: Counter[tuple[str | None, ...]] = Counter()
    values = zip(*(changes.column(name).to_pylist() for name in table.columns), strict=True)
    for operation, row in zip(changes.column("_operation").to_pylist(), values, strict=True):
        counts[row] += -1 if operation == "delete" else 1
    rows = list(counts.elements())
    return pa.table(
        {name: pa.array([row[place] for row in rows], pa.string()) for place, name in enumerate(table.columns)}
    )


@contextmanager
def open_files_rows(endpoint: Endpoint, name: str) -> Iterator[ComparedRows]:
    """The rows that manifests name when it is opened. Errors: those of `FilePlace`."""
    yield FilesRows(name, FilesAddress.parse(endpoint.url))

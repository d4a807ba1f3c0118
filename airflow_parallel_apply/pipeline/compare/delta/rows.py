"""A Delta lake's rows for a comparison: each table at the version that is the newest when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.compare.feed import changes_of, current_rows
from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.target.delta.place import Lake, lake_of
from airflow_parallel_apply.pipeline.target.delta.tables import open_table, read_columns, schema_of

_BATCH_ROWS: Final = 100_000


class DeltaRows:
    """See `ComparedRows`. A table that nothing was committed to is not there, and has no rows."""

    def __init__(self, name: str, lake: Lake) -> None:
        self.name = name
        self._lake = lake

    def tables(self) -> list[SourceTable]:
        raise NotImplementedError("a Delta lake is no source")

    def having(self, table: SourceTable) -> SourceTable:
        """A lake computes nothing: a column that the source computes, and does not send, is missed by nobody."""
        found = open_table(self._lake, self._lake.table_uri(table.schema, table.table))
        here = set() if found is None else set(schema_of(found).names)
        generated = [name for name in table.generated if name in here]
        return replace(table, columns=[*table.columns, *generated], generated=generated)

    def batches(self, table: SourceTable) -> Iterator[pa.RecordBatch]:
        found = open_table(self._lake, self._lake.table_uri(table.schema, table.table))
        if found is None:
            return
        if self._lake.is_feed:
            # All changes of the table are in memory.
            read = pa.Table.from_batches(read_columns(found, table.name), schema_of(found))
            changes = changes_of(read, table, _change_names(table.name, read.column_names))
            yield from current_rows([changes], table).to_batches(max_chunksize=_BATCH_ROWS)
            return
        lacking = set(table.columns).difference(schema_of(found).names)
        if lacking:
            raise TableRefused(f"{table.name} lacks column {min(lacking)}")
        yield from read_columns(found, table.name, table.columns)

    def cancel(self) -> None:
        """A batch is read in a moment."""


def _change_names(table: str, columns: Sequence[str]) -> list[str]:
    """The names of `CHANGE` in a feed: with more underscores where the table has columns of such names itself."""
    first = CHANGE.names[0]
    underscores = [name.removesuffix(first) for name in columns if name.lstrip("_") == first.lstrip("_")]
    names = [max(underscores, key=len, default="") + name for name in CHANGE.names]
    if not set(names) <= set(columns):
        raise TableRefused(f"{table} is no feed of changes: it has no column {first}")
    return names


@contextmanager
def open_delta_rows(endpoint: Endpoint, name: str) -> Iterator[ComparedRows]:
    """Errors: `ConfigurationError` for an endpoint that is no lake."""
    yield DeltaRows(name, lake_of(endpoint.url))

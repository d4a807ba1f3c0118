"""Stage a unit's rows as Parquet in the lake: what one attempt of one Spark task does with its rows.

A file for each relation, typed as its table is, written as rows stream through. An attempt ends by naming its files,
and what it left without that is swept with its claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.apply.net_changes import DELETE, INSERT, UPDATE, NetChanges
from airflow_parallel_apply.pipeline.apply.relation_load import RelationLoad, RelationLoads
from airflow_parallel_apply.pipeline.encode.columns.rows import UnfitColumns, typed_values
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.delta.columns import (
    OPERATION,
    SEQNO,
    UNSENT,
    column_typings,
    table_schema,
)
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.staging import Staging
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask

_ROWS_AT_ONCE: Final = 16_384
"""Net changes of a relation that are typed and written together."""


def staged_schema(relation: Relation) -> pa.Schema:
    """The columns of staged net changes: those of the table, and what becomes of the row."""
    return pa.schema(
        [
            *table_schema(relation),
            pa.field(OPERATION, pa.string(), nullable=False),
            pa.field(SEQNO, pa.int64(), nullable=False),
            pa.field(UNSENT, pa.string()),
        ]
    )


def unfit_value(error: UnfitColumns) -> TargetError:
    """The error of a value that no column of the table can hold."""
    return TargetError(
        f"the source's {error.column} has a value that no column of a Delta table holds",
        op="stage",
        table=error.table,
        column=error.column,
        seqno=error.seqno,
        values=error.values,
        # Neither helps by itself: what is in the log is applied under the tables of its time.
        hint="Correct the value at the source, or exclude the table, and begin anew, since the log has the value: "
        "parallel-apply drop, an empty lake, a new log and start=copy.",
    )


def staged_rows(relation: Relation, changes: NetChanges) -> pa.RecordBatch:
    """Net changes as staging has them. Errors: `TargetError` for a value that its column cannot hold."""
    seqnos = pa.array(changes.seqnos, pa.int64())
    try:
        columns = typed_values(changes.values, seqnos, column_typings(relation), relation.name)
    except UnfitColumns as error:
        raise unfit_value(error) from error
    operations = pa.array([chr(code) for code in (INSERT, UPDATE, DELETE)]).take(
        pc.index_in(pa.array(changes.operations), pa.array([INSERT, UPDATE, DELETE], pa.uint8()))
    )
    unsent = pa.nulls(len(seqnos), pa.string()) if changes.unsent is None else changes.unsent
    return pa.RecordBatch.from_arrays([*columns, operations, seqnos, unsent], schema=staged_schema(relation))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLoader:
    """See `Loader`. `scope`: whose staging it is."""

    lake: Lake
    pipeline: str
    scope: str
    token: str
    relations: tuple[Relation, ...]

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        del task
        staging = Staging(self.lake, self.pipeline)
        with ExitStack() as files:
            numbers = count()

            def begin(relation: Relation) -> _TableLoad:
                name = staging.name(self.scope, self.token, attempt, next(numbers))
                return _TableLoad(relation, name, files.enter_context(staging.writing(name, staged_schema(relation))))

            loads = RelationLoads(self.relations, begin)
            row_count = loads.stage(batches)
        return Loaded(tables=loads.staged(), row_count=row_count)


class _TableLoad(RelationLoad):
    def __init__(self, relation: Relation, name: str, writer: pq.ParquetWriter) -> None:
        super().__init__(relation, name)
        self._writer = writer
        self._waiting: list[pa.RecordBatch] = []

    @property
    def buffered_bytes(self) -> int:
        return sum(batch.nbytes for batch in self._waiting)

    def _keep(self, changes: NetChanges) -> None:
        self._count(changes)
        self._waiting.append(staged_rows(self._relation, changes))
        if sum(len(batch) for batch in self._waiting) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting.clear()

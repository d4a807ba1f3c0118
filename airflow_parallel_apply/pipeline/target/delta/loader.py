"""Stage a unit's rows as Parquet in the lake: what one attempt of one Spark task does with its rows.

A file for each relation, typed as its table is, written as rows stream through. An attempt ends by naming its files,
and what it left without that is swept with its claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.apply.net_changes import DELETE, INSERT, UPDATE, NetChanges
from airflow_parallel_apply.pipeline.apply.reduce import Reducer
from airflow_parallel_apply.pipeline.encode.columns.rows import UnfitColumns, typed_values
from airflow_parallel_apply.pipeline.errors import LogError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
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


def staged_rows(relation: Relation, changes: NetChanges) -> pa.RecordBatch:
    """Net changes as staging has them. Errors: `TargetError` for a value that its column cannot hold."""
    seqnos = pa.array(changes.seqnos, pa.int64())
    try:
        columns = typed_values(changes.values, seqnos, column_typings(relation), relation.name)
    except UnfitColumns as error:
        raise TargetError(
            f"the source's {error.column} has a value that no column of a Delta table holds",
            op="stage",
            table=relation.name,
            column=error.column,
            seqno=error.seqno,
            values=error.values,
            hint="Correct the value at the source, or exclude the table.",
        ) from error
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
        row_count = 0
        with ExitStack() as files:
            loads: dict[int, _TableLoad] = {}
            for batch in batches:
                row_count += batch.num_rows
                for relation_id, rows in _by_relation(batch):
                    if relation_id not in loads:
                        loads[relation_id] = self._begin(files, relation_id, attempt, len(loads))
                    loads[relation_id].feed(rows)
            for load in loads.values():
                load.finish()
        return Loaded(tables=tuple(load.staged() for load in loads.values() if load.row_count), row_count=row_count)

    def _begin(self, files: ExitStack, relation_id: int, attempt: str, number: int) -> _TableLoad:
        found = [relation for relation in self.relations if relation.relation_id == relation_id]
        if not found:
            raise LogError(f"rows of relation {relation_id}, which the unit does not define")
        staging = Staging(self.lake, self.pipeline)
        name = staging.name(self.scope, self.token, attempt, number)
        writer = files.enter_context(staging.writing(name, staged_schema(found[0])))
        return _TableLoad(found[0], name, writer)


class _TableLoad:
    """Not thread-safe, used once."""

    def __init__(self, relation: Relation, name: str, writer: pq.ParquetWriter) -> None:
        self._relation = relation
        self._name = name
        self._writer = writer
        self._reducer = Reducer(relation)
        self._waiting: list[pa.RecordBatch] = []
        self._has_unsent = False
        self._counts = {INSERT: 0, UPDATE: 0, DELETE: 0}

    @property
    def row_count(self) -> int:
        return sum(self._counts.values())

    def feed(self, rows: pa.RecordBatch) -> None:
        self._keep(self._reducer.feed(rows))

    def finish(self) -> None:
        self._keep(self._reducer.finish())
        self._write()

    def staged(self) -> StagedTable:
        return StagedTable(
            relation_id=self._relation.relation_id,
            staging=self._name,
            inserts=self._counts[INSERT],
            updates=self._counts[UPDATE],
            deletes=self._counts[DELETE],
            has_unsent=self._has_unsent,
        )

    def _keep(self, found: Iterator[NetChanges]) -> None:
        for changes in found:
            self._has_unsent |= changes.unsent is not None
            for operation in self._counts:
                self._counts[operation] += changes.count(operation)
            self._waiting.append(staged_rows(self._relation, changes))
            if sum(len(batch) for batch in self._waiting) >= _ROWS_AT_ONCE:
                self._write()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting.clear()


def _by_relation(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each relation, in the order they have; without a copy when there is only one."""
    if batch.num_rows == 0:
        return
    for name in ("key", "values", "unsent"):
        # Spark may send wide strings.
        place = batch.schema.get_field_index(name)
        if batch.column(place).type != pa.string():
            batch = batch.set_column(place, name, batch.column(place).cast(pa.string()))
    column = batch.column("relation_id")
    for relation_id in pc.unique(column).to_pylist():
        yield relation_id, batch.filter(pc.equal(column, relation_id))

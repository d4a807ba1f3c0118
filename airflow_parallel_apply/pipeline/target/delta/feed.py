"""A lake as a feed: every change is a row of its table, appended with the unit that has it.

What is staged has a file for each definition of a table, typed as exports are. It is appended in the commit that sets
the table's application transaction, so whoever appends it a second time passes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, UnfitColumns, typed_rows
from airflow_parallel_apply.pipeline.errors import LogError, PlanError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable, Unit
from airflow_parallel_apply.pipeline.target.delta.columns import feed_typing
from airflow_parallel_apply.pipeline.target.delta.loader import unfit_value
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.staging import Staging, scope_of
from airflow_parallel_apply.pipeline.target.delta.state import Effect, TableChange
from airflow_parallel_apply.pipeline.target.feed_rows import changed_rows, require_unaltered, truncate_rows
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Remove, Replay, Statement, Step, Truncate

_ROWS_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLoader:
    """See `Loader`. It takes every change. `scope`: whose staging it is."""

    lake: Lake
    pipeline: str
    scope: str
    token: str
    relations: tuple[Relation, ...]
    commit_times: CommitTimes

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        del task
        relations = {relation.relation_id: relation for relation in self.relations}

        def relation(relation_id: int) -> Relation:
            if relation_id not in relations:
                raise LogError(f"rows of relation {relation_id}, which the unit does not define")
            return relations[relation_id]

        staging = Staging(self.lake, self.pipeline)
        return _staged(
            batches,
            relation,
            self.commit_times,
            staging,
            lambda number: staging.name(self.scope, self.token, attempt, number),
        )


def feed_changes_of(
    steps: Sequence[Step], unit: Unit, staging: Staging, relations: Relations
) -> tuple[TableChange, ...]:
    """The steps of a unit as one append to each definition of a table; rows to replay, and truncates, are staged.
    Errors: `PlanError` for a step that no feed can follow; `TargetError`.
    """
    require_unaltered(steps, relations)
    tables: list[StagedTable] = []
    times: CommitTimes | None = None
    for number, step in enumerate(steps):
        match step:
            case Merge():
                tables += step.staged.tables
            case Replay() | Truncate():
                times = times or relations.commit_times(unit.after_seqno, unit.last_seqno)
                rows = [truncate_rows(step)] if isinstance(step, Truncate) else changed_rows(step.rows())

                def name(file: int, number: int = number) -> str:
                    return staging.name(scope_of(unit.channel, None), unit.token, f"step {number}", file)

                tables += _staged(rows, relations, times, staging, name).tables
            case Redefine() | Statement() | Remove():
                # A row comes with the columns of its own definition: an append adds those that are new.
                pass
            case _:
                raise PlanError(f"a feed cannot follow {step}", op="commit")
    return tuple(
        TableChange(
            effect=Effect.APPEND,
            relation_id=relation_id,
            files=tuple(table.staging for table in tables if table.relation_id == relation_id),
        )
        for relation_id in sorted({table.relation_id for table in tables})
    )


@dataclass(slots=True, kw_only=True)
class _File:
    typing: RowTyping
    name: str
    writer: pq.ParquetWriter
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def keep(self, rows: pa.RecordBatch, commit_times: CommitTimes) -> None:
        self.waiting.append(_typed(rows, self.typing, commit_times))
        for found in pc.value_counts(rows.column("operation")).to_pylist():
            self.counts[found["values"]] = self.counts.get(found["values"], 0) + found["counts"]
        if sum(len(batch) for batch in self.waiting) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.Table.from_batches(self.waiting))
            self.waiting.clear()

    def count(self, *operations: Operation) -> int:
        return sum(self.counts.get(operation.value, 0) for operation in operations)


def _staged(
    batches: Iterable[pa.RecordBatch],
    relations: Callable[[int], Relation],
    commit_times: CommitTimes,
    staging: Staging,
    name: Callable[[int], str],
) -> Loaded:
    """Write a file for each relation. Errors: `TargetError`, `LogError`, `Unavailable`."""
    files: dict[int, _File] = {}
    row_count = 0
    with ExitStack() as opened:
        for batch in batches:
            row_count += batch.num_rows
            ids = batch.column("relation_id").to_numpy()
            for relation_id in np.unique(ids).tolist():
                if relation_id not in files:
                    typing, path = feed_typing(relations(relation_id)), name(len(files))
                    writer = opened.enter_context(staging.writing(path, typing.schema.remove_metadata()))
                    files[relation_id] = _File(typing=typing, name=path, writer=writer)
                files[relation_id].keep(batch.filter(pa.array(ids == relation_id)), commit_times)
        for file in files.values():
            file.flush()
    tables = tuple(
        StagedTable(
            relation_id=relation_id,
            staging=file.name,
            inserts=file.count(Operation.INSERT, Operation.KEY_ARRIVED),
            updates=file.count(Operation.UPDATE),
            deletes=file.count(Operation.DELETE, Operation.KEY_LEFT),
            has_unsent=False,
        )
        for relation_id, file in files.items()
    )
    return Loaded(tables=tables, row_count=row_count)


def _typed(rows: pa.RecordBatch, typing: RowTyping, commit_times: CommitTimes) -> pa.RecordBatch:
    try:
        times = commit_times.of(rows.column("seqno"))
        return typed_rows(rows, typing, times, copied_through=commit_times.copied_through)
    except UnfitColumns as error:
        raise unfit_value(error) from error

"""Folding one table: what its truncates and key changes say first, then its changes, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.compact.files.folding import Folder, Moves
from airflow_parallel_apply.pipeline.compact.files.lineage import Identity, Lineage
from airflow_parallel_apply.pipeline.compact.files.reading import RowReader
from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile

Opened = Callable[[DataFile], Iterator[pa.RecordBatch]]
"""The rows of a file that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInput:
    """A table's files, and how they are read. `opened`: reads a file. `memory_bytes`, `directory`: as `Folder` has
    them.
    """

    lineage: Lineage
    typing: RowTyping
    files: tuple[DataFile, ...]
    opened: Opened
    memory_bytes: int
    directory: Path

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows that are left, as a feed has insertions. Errors: those of `Folder` and `RowReader`."""
        truncated = self._last_truncate()
        left: Iterable[pa.Table] = ()
        for number, stage in enumerate(self.lineage.stages):
            reader = RowReader(typing=self.typing, stage=stage)
            files = [file for file in self.files if self.lineage.stage_of(file.relation_id) == number]
            folder = Folder(
                table=self.typing.table,
                columns=tuple(one.column.name for one in self.typing.columns),
                identity=stage.identity,
                moves=self._moves(reader, files) if stage.identity is Identity.KEY else Moves(),
                memory_bytes=self.memory_bytes,
                directory=self.directory,
                required=self.lineage.required(number),
            )
            left = folder.folded(self._changes(reader, files, left, truncated))
        for table in left:
            for batch in self._in_order(table).to_batches():
                yield self._as_insertions(batch)

    def _changes(
        self, reader: RowReader, files: Iterable[DataFile], before: Iterable[pa.Table], truncated: tuple[int, int]
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the stage before has left, and the changes of this one."""
        width = len(self.typing.columns)
        for table in before:
            for batch in table.to_batches():
                nothing = pa.nulls(batch.num_rows, pa.string())
                yield reader.rows(batch.columns[:width], self._inserted(batch), batch.column("unknown"), nothing)
        for file in files:
            for read in self.opened(file):
                batch = reader.batch(read, file.relation_id)
                counts = np.asarray(pc.not_equal(batch.column("operation"), "truncate")) & _behind(batch, truncated)
                if counts.any():
                    yield batch if counts.all() else batch.filter(pa.array(counts))

    def _last_truncate(self) -> tuple[int, int]:
        """(seqno, fragno) of the last truncate; before everything where there is none."""
        found = (-2, -1)
        for file in self.files:
            for read in self.opened(file):
                operation, seqno, fragno = read.columns[-6:-3]
                for row in np.flatnonzero(np.asarray(pc.equal(operation, "truncate"))).tolist():
                    found = max(found, (seqno[row].as_py(), fragno[row].as_py()))
        return found

    def _moves(self, reader: RowReader, files: Iterable[DataFile]) -> Moves:
        moves = Moves()
        for file in files:
            for read in self.opened(file):
                if read.columns[-1].null_count == read.num_rows:
                    continue
                moved = reader.batch(read.filter(pc.is_valid(read.columns[-1])), file.relation_id)
                lacking = moved.filter(pc.is_valid(moved.column("unknown")))
                for old, new in zip(
                    lacking.column("old_key").to_pylist(), lacking.column("key").to_pylist(), strict=True
                ):
                    moves.add(old, new)
        return moves

    def _in_order(self, table: pa.Table) -> pa.Table:
        """By key, so that readers of a range find it side by side."""
        key = self.lineage.stages[-1].key
        return table.sort_by([(str(place), "ascending") for place in key]) if key else table

    def _as_insertions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        width = len(self.typing.columns)
        nothing = pa.nulls(batch.num_rows, pa.string())
        return pa.RecordBatch.from_arrays(
            [*batch.columns[:width], *self._inserted(batch), nothing, nothing], schema=self.typing.schema
        )

    @staticmethod
    def _inserted(batch: pa.RecordBatch) -> list[pa.Array]:
        operation = pa.array(["insert"] * batch.num_rows, pa.string())
        return [operation, *(batch.column(name) for name in ("seqno", "fragno", "commit_time"))]


def _behind(batch: pa.RecordBatch, place: tuple[int, int]) -> npt.NDArray[np.bool_]:
    seqno, fragno = batch.column("seqno").to_numpy(), batch.column("fragno").to_numpy()
    found: npt.NDArray[np.bool_] = (seqno > place[0]) | ((seqno == place[0]) & (fragno > place[1]))
    return found

"""Writing a feed's data files: rows of a log, of several tables in any mixture, as typed rows in files by table.

Nobody reads such a file before a manifest names it. A file has at most `_FILE_BYTES` of the log's text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, UnfitColumns, row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.encode.open import open_encoder
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress

_FILE_BYTES: Final = 64 * 2**20
_HELD_BYTES: Final = 128 * 2**20
"""The bytes of all tables' rows that wait for a file."""

_BATCH_ROWS: Final = 131_072


@dataclass(slots=True, kw_only=True)
class _Table:
    typing: RowTyping
    encoder: Encoder
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes_: int = 0


class FeedWriter:
    """Writes the files of one attempt. Used once, by one thread. `relations`: the definition of an id."""

    def __init__(
        self, address: FilesAddress, *, relations: Callable[[int], Relation], commit_times: CommitTimes
    ) -> None:
        self._address = address
        self._dataset = Dataset(address.place())
        self._relations = relations
        self._commit_times = commit_times
        self._attempt = uuid.uuid4().hex
        self._tables: dict[int, _Table] = {}
        self._files: list[DataFile] = []
        self._counts: list[StagedTable] = []
        self.row_count = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows in (seqno, fragno) order: `ROWS`, or those of its columns that a loader gets.

        Errors: `TargetError` for a value that its column's type cannot hold; `LogError`; those of `FilePlace`.
        """
        for batch in batches:
            ids = batch.column("relation_id").to_numpy()
            for relation_id in np.unique(ids).tolist():
                part = batch.filter(pa.array(ids == relation_id)) if (ids != relation_id).any() else batch
                table = self._table(relation_id)
                table.waiting.append(part)
                table.bytes_ += part.nbytes
                if table.bytes_ >= _FILE_BYTES:
                    self._flush(relation_id)
            self.row_count += batch.num_rows
            while sum(table.bytes_ for table in self._tables.values()) > _HELD_BYTES:
                self._flush(max(self._tables, key=lambda one: self._tables[one].bytes_))

    def finish(self) -> tuple[StagedTable, ...]:
        """Write what waits; what was staged, one for each file."""
        for relation_id in self._tables:
            self._flush(relation_id)
        return tuple(self._counts)

    def discard(self) -> None:
        """Remove what was written; nobody has named it."""
        for file in self._files:
            self._dataset.place.remove(file.path)

    def _flush(self, relation_id: int) -> None:
        table = self._tables[relation_id]
        if not table.waiting:
            return
        rows = pa.Table.from_batches(table.waiting)
        table.waiting, table.bytes_ = [], 0
        seqnos, operations = rows.column("seqno"), rows.column("operation")

        def content() -> Iterator[bytes]:
            yield table.encoder.head()
            yield from table.encoder.body(self._typed(rows, table.typing))
            yield table.encoder.tail()

        name = f"{self._attempt}-{len(self._files):06d}{table.encoder.suffix}"
        path = self._dataset.data_path(table.typing.table, relation_id, name)
        size, checksum = self._dataset.write(path, content())
        file = DataFile(
            path=path,
            table=table.typing.table,
            relation_id=relation_id,
            rows=rows.num_rows,
            bytes_=size,
            first_seqno=seqnos[0].as_py(),
            last_seqno=seqnos[-1].as_py(),
            checksum=checksum,
        )
        self._files.append(file)

        def count(*kinds: Operation) -> int:
            return int(pc.sum(pc.is_in(operations, pa.array([kind.value for kind in kinds]))).as_py() or 0)

        self._counts.append(
            StagedTable(
                relation_id=relation_id,
                staging=json.dumps(asdict(file)),
                inserts=count(Operation.INSERT, Operation.KEY_ARRIVED),
                updates=count(Operation.UPDATE),
                deletes=count(Operation.DELETE, Operation.KEY_LEFT),
                has_unsent=False,
            )
        )

    def _typed(self, rows: pa.Table, typing: RowTyping) -> Iterator[pa.RecordBatch]:
        for batch in rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
            try:
                times = self._commit_times
                yield typed_rows(batch, typing, times.of(batch.column("seqno")), copied_through=times.copied_through)
            except UnfitColumns as error:
                names = ",".join(f"{typing.table}.{column}" for column in error.columns)
                raise TargetError(
                    f"a value that {error.column} cannot hold as {typing.schema.field(error.column).type}",
                    op="stage",
                    seqno=error.seqno,
                    table=error.table,
                    column=error.column,
                    values=error.values,
                    hint=f"Keep the source's text of it: the option text={names} of the target's address.",
                ) from error

    def _table(self, relation_id: int) -> _Table:
        if relation_id not in self._tables:
            relation = self._relations(relation_id)
            typing = row_typing(relation, self._address.texts_of(relation.name))
            self._tables[relation_id] = _Table(typing=typing, encoder=open_encoder(self._address.format, typing))
        return self._tables[relation_id]


def file_of(table: StagedTable) -> DataFile:
    """The file that was staged."""
    return DataFile(**json.loads(table.staging))

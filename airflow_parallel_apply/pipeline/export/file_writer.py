"""Writing an export's files: each range of a window is one file, written by the worker that has encoded it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import tenacity

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, TableSchema
from airflow_parallel_apply.pipeline.encode.files.schemas import schema_of
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.open import open_encoder
from airflow_parallel_apply.pipeline.encode.progress import Progress
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.errors import RetryableError
from airflow_parallel_apply.pipeline.export.options import ExportOptions
from airflow_parallel_apply.pipeline.export.protocol import Portion, Stretch

_PAUSE = tenacity.wait_exponential(multiplier=0.1, max=5)


Opened: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    typing: RowTyping
    encoder: Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriter:
    """Writes the files of one attempt at an export. Threads share one. `texts`: columns that keep the source's text."""

    dataset: Dataset
    options: ExportOptions
    format: Format
    stretch: Stretch
    texts: frozenset[str]
    progress: Progress
    _attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _tables: dict[int, _Table] = field(default_factory=dict)
    _paths: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def works(self) -> Iterator[Callable[[], Iterator[DataFile]]]:
        """The works of a pool: each writes one file. Drawn by one thread."""
        number = 0
        for portion in self.stretch.portions(self._pass_over):
            for cursor in cursors(portion.rows, portion.keys, self.options.threads):
                number += 1
                yield partial(self._file, portion, cursor.open, number)

    def discard(self) -> None:
        """Remove all files that this attempt has written; no worker is left."""
        for path in self._paths:
            self.dataset.place.remove(path)

    def schemas(self) -> tuple[TableSchema, ...]:
        """The columns of all tables that have files."""
        return tuple(schema_of(table.typing, relation_id) for relation_id, table in sorted(self._tables.items()))

    def _file(self, portion: Portion, opened: Opened, number: int) -> Iterator[DataFile]:
        """Write a file, again where the place refuses it for a moment, each time under another name."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(RetryableError),
            stop=tenacity.stop_after_attempt(self.options.attempts),
            wait=_PAUSE,
            reraise=True,
        )
        found = retrying(self._write, portion, opened, number)
        if found is not None:
            yield found

    def _write(self, portion: Portion, opened: Opened, number: int) -> DataFile | None:
        relation = portion.relation
        table = self._table(portion)
        seqnos: list[int] = []
        rows = 0
        with self.progress.attempt() as count:

            def typed() -> Iterator[pa.RecordBatch]:
                nonlocal rows
                for batch in opened():
                    seqnos.extend(portion.seqnos(batch))
                    yield portion.typed(batch, table.typing)
                    rows += batch.num_rows
                    count(batch.num_rows, 0)

            def content() -> Iterator[bytes]:
                yield table.encoder.head()
                for piece in table.encoder.body(typed()):
                    count(0, len(piece))
                    yield piece
                yield table.encoder.tail()

            name = f"{self._attempt}-{number:06d}-{uuid.uuid4().hex[:6]}{table.encoder.suffix}"
            path = self.dataset.data_path(table.typing.table, relation.relation_id, name)
            with self._lock:
                self._paths.append(path)
            size, checksum = self.dataset.write(path, content())
        if not seqnos:
            self.dataset.place.remove(path)
            return None
        return DataFile(
            path=path,
            table=table.typing.table,
            relation_id=relation.relation_id,
            rows=rows,
            bytes_=size,
            first_seqno=seqnos[0],
            last_seqno=seqnos[-1],
            checksum=checksum,
        )

    def _table(self, portion: Portion) -> _Table:
        relation = portion.relation
        with self._lock:
            if relation.relation_id not in self._tables:
                prefix = f"{relation.name}."
                typing = portion.typing([name.removeprefix(prefix) for name in self.texts if name.startswith(prefix)])
                encoder = open_encoder(self.format, typing, server=self.stretch.server, database=self.stretch.database)
                self._tables[relation.relation_id] = _Table(typing=typing, encoder=encoder)
            return self._tables[relation.relation_id]

    def _pass_over(self, rows: int) -> None:
        with self.progress.attempt() as count:
            count(rows, 0)

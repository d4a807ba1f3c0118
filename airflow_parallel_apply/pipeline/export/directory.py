"""Files as an export's place: a commit is the next manifest, which names them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset, FilesLost
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.pool import Pool
from airflow_parallel_apply.pipeline.encode.progress import Progress
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError
from airflow_parallel_apply.pipeline.export.file_writer import FileWriter
from airflow_parallel_apply.pipeline.export.options import ExportOptions
from airflow_parallel_apply.pipeline.export.protocol import Held, Stretch
from airflow_parallel_apply.pipeline.export.report import ExportReport
from airflow_parallel_apply.pipeline.log.mark import Mark
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO

POSITION: Final = "exported"
"""The key of an export's position."""

_EXPORT_IDS: Final = "export_ids"
"""The key of the state in which each manifest has the ids of all queries' exports up to it: merged ones keep the last
one's state alone.
"""
_MARK: Final = "mark"
"""The key of the mark of a log's last transaction."""


class FilesPlace:
    """See `Place`."""

    def __init__(self, url: str, options: ExportOptions, cancelled: Callable[[], bool]) -> None:
        self.url = url
        self._format = options.format or Format.PARQUET
        self._options = options
        self._cancelled = cancelled
        self._dataset = Dataset(FilePlace(url))

    @property
    def format(self) -> str:
        return self._format

    @property
    def texts(self) -> tuple[str, ...]:
        return ()

    @contextmanager
    def attempt(self) -> Iterator[FilesAttempt]:
        self._dataset.require_whole()
        newest = self._dataset.newest()
        if newest is not None and POSITION not in newest.positions:
            raise EncodeError(
                f"{self.url} is the directory of a pipeline, which feeds it",
                op="export",
                hint="Export to a place of its own.",
            )
        attempt = FilesAttempt(self._dataset, newest, self._options, self._format, self._cancelled)
        try:
            yield attempt
        finally:
            attempt.discard()


class FilesAttempt:
    """See `Attempt`."""

    def __init__(
        self,
        dataset: Dataset,
        newest: FileManifest | None,
        options: ExportOptions,
        format_: Format,
        cancelled: Callable[[], bool],
    ) -> None:
        self._dataset = dataset
        self._newest = newest
        self._options = options
        self._format = format_
        self._cancelled = cancelled
        self._writer: FileWriter | None = None
        self._files: list[DataFile] = []

    @property
    def held(self) -> Held | None:
        if self._newest is None:
            return None
        return Held(
            origin=self._newest.log_id,
            format=self._newest.format,
            position=self._newest.positions[POSITION],
            texts=self._newest.kept_as_text,
            mark=Mark(**mark) if (mark := self._newest.state.get(_MARK)) else None,
        )

    def has(self, export_id: str) -> bool:
        return export_id in self._export_ids()

    def write(self, stretch: Stretch, texts: Collection[str], progress: Progress) -> None:
        if stretch.export_id and self._format is Format.DEBEZIUM:
            raise ConfigurationError(
                "a query has rows, and Debezium's envelope is one of changes", op="export", hint="Take json."
            )
        self._writer = FileWriter(
            dataset=self._dataset,
            options=self._options,
            format=self._format,
            stretch=stretch,
            texts=frozenset(texts),
            progress=progress,
        )
        Pool(threads=self._options.threads, cancelled=self._cancelled).ordered(self._writer.works(), self._files.append)

    def commit(self, stretch: Stretch, held: Held) -> ExportReport | None:
        manifest = FileManifest(
            version=0 if self._newest is None else self._newest.version + 1,
            log_id=held.origin,
            format=held.format,
            writer=uuid.uuid4().hex[:12],
            created=datetime.now(UTC),
            positions={POSITION: held.position},
            kept_as_text=held.texts,
            tables=() if self._writer is None else self._writer.schemas(),
            files=tuple(self._files),
            state=self._state(stretch, held),
        )
        writer, self._writer = self._writer, None
        try:
            is_committed = self._dataset.commit(manifest)
        except FilesLost:
            self._writer = writer
            raise
        # Whatever else it raises, the manifest may be there, and name the files.
        if not is_committed:
            self._writer = writer
            return None
        return ExportReport(
            first_seqno=stretch.first_seqno,
            last_seqno=stretch.last_seqno,
            version=manifest.version,
            rows=sum(file.rows for file in self._files),
            bytes_=sum(file.bytes_ for file in self._files),
            files=tuple(self._dataset.place.url(file.path) for file in self._files),
            texts=_texts_of(manifest),
            export_id=stretch.export_id,
        )

    def nothing(self, export_id: str) -> ExportReport:
        newest = self._newest
        position = NO_SEQNO if newest is None else newest.positions[POSITION]
        return ExportReport(
            first_seqno=None if export_id else position + 1,
            last_seqno=None if export_id else position,
            version=None if newest is None else newest.version,
            rows=0,
            bytes_=0,
            texts=() if newest is None else _texts_of(newest),
            export_id=export_id,
        )

    def _state(self, stretch: Stretch, held: Held) -> dict[str, Any]:
        if stretch.export_id:
            return {_EXPORT_IDS: [*self._export_ids(), stretch.export_id]}
        return {} if held.mark is None else {_MARK: asdict(held.mark)}

    def _export_ids(self) -> list[str]:
        return [] if self._newest is None else list(self._newest.state.get(_EXPORT_IDS, ()))

    def discard(self) -> None:
        """Remove what was written, unless it may be committed; no worker is left."""
        if self._writer is not None:
            self._writer.discard()


def _texts_of(manifest: FileManifest) -> tuple[str, ...]:
    return tuple(sorted({f"{table.table}.{column}" for table in manifest.tables for column in table.texts}))

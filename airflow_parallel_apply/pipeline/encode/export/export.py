"""Exports a range of a log: `export_changes`. One commit for each call; a call again, or a late one, adds nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import UnfitColumns
from airflow_parallel_apply.pipeline.encode.export.options import ExportOptions
from airflow_parallel_apply.pipeline.encode.export.writing import FileWriter
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.pool import Pool
from airflow_parallel_apply.pipeline.encode.progress import Encoded, Progress
from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO

POSITION: Final = "exported"
"""The key of an export's position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The result of an export. `last_seqno`: how far the place comes now. `version`: of the newest manifest; None
    before the first one. `texts`: columns, as schema.table.column, that keep the source's text.
    """

    first_seqno: int
    last_seqno: int
    version: int | None
    rows: int
    bytes_: int
    files: tuple[str, ...]
    texts: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The form of XComs and of `--json`."""
        return {**asdict(self), "files": list(self.files), "texts": list(self.texts)}

    def __str__(self) -> str:
        if not self.files:
            return f"nothing to export: the place comes up to seqno {self.last_seqno}"
        return (
            f"exported seqnos {self.first_seqno} to {self.last_seqno}: {self.rows:,} rows, "
            f"{self.bytes_ / 2**20:,.1f} MB in {len(self.files)} files, version {self.version}"
        )


def export_changes(
    log: LogReader,
    url: str,
    options: ExportOptions,
    *,
    report: Callable[[Encoded], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> ExportReport:
    """Write the changes behind the place's position, up to `options.until_seqno`, and commit them with the position.

    Columns with values that their types cannot hold keep the source's text from then on, and are named. Errors:
    `EncodeError`, also for a place that has another log's changes, or another format; `LogError` for what was purged;
    `Unavailable`, also when cancelled. Whatever it raises, nothing of this call is committed.
    """
    dataset = Dataset(FilePlace(url))
    newest = dataset.newest()
    _check_same(newest, log, options, url)
    state = log.state()
    after = NO_SEQNO if newest is None else newest.positions[POSITION]
    last = state.last_seqno if options.until_seqno is None else min(options.until_seqno, state.last_seqno)
    if last <= after:
        return _nothing(newest, after)
    # Once a text, always a text: readers of a place find one type.
    texts = {*options.texts, *(newest.kept_as_text if newest is not None else ())}
    total = pc.sum(log.transactions(after, last).column("row_count")).as_py() or 0
    while True:
        progress = Progress(report, total_rows=total)
        writer = FileWriter(log=log, dataset=dataset, options=options, texts=frozenset(texts), progress=progress)
        files: list[DataFile] = []
        try:
            Pool(threads=options.threads, cancelled=cancelled).ordered(writer.works(after, last), files.append)
        except BaseException as error:
            writer.discard()
            found = _unfit(error) - texts
            if not found:
                raise
            texts |= found
            continue
        break
    manifest = FileManifest(
        version=0 if newest is None else newest.version + 1,
        log_id=log.identity.log_id,
        format=options.format,
        writer=uuid.uuid4().hex[:12],
        created=datetime.now(UTC),
        positions={POSITION: last},
        kept_as_text=tuple(sorted(texts)),
        tables=writer.schemas(),
        files=tuple(files),
    )
    if not dataset.commit(manifest):
        # Another export has gone on from the same position: ours begins again behind it.
        writer.discard()
        return export_changes(log, url, options, report=report, cancelled=cancelled)
    return ExportReport(
        first_seqno=after + 1,
        last_seqno=last,
        version=manifest.version,
        rows=sum(file.rows for file in files),
        bytes_=sum(file.bytes_ for file in files),
        files=tuple(dataset.place.url(file.path) for file in files),
        texts=_texts_of(manifest),
    )


def _check_same(newest: FileManifest | None, log: LogReader, options: ExportOptions, url: str) -> None:
    if newest is None:
        return
    if POSITION not in newest.positions:
        raise EncodeError(
            f"{url} is the directory of a pipeline, which feeds it",
            op="export",
            hint="Export to a place of its own.",
        )
    for what, there, here in (
        ("the log", newest.log_id, log.identity.log_id),
        ("the format", newest.format, options.format),
    ):
        if there != here:
            raise EncodeError(
                f"{url} has files of another export: {what} is {there}, and not {here}",
                op="export",
                hint="Export to a place of its own.",
            )


def _unfit(error: BaseException) -> set[str]:
    """The columns that an error of the pool is about; none where it is about something else, too."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else (error,)
    if not all(isinstance(one, UnfitColumns) for one in causes):
        return set()
    return {f"{one.table}.{column}" for one in causes if isinstance(one, UnfitColumns) for column in one.columns}


def _nothing(newest: FileManifest | None, position: int) -> ExportReport:
    return ExportReport(
        first_seqno=position + 1,
        last_seqno=position,
        version=None if newest is None else newest.version,
        rows=0,
        bytes_=0,
        files=(),
        texts=() if newest is None else _texts_of(newest),
    )


def _texts_of(manifest: FileManifest) -> tuple[str, ...]:
    return tuple(sorted({f"{table.table}.{column}" for table in manifest.tables for column in table.texts}))

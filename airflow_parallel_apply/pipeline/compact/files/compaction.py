"""Compacts a directory of files: `compact_directory`. A snapshot appears with the exclusive create of its manifest.

| killed | leaves | and |
|---|---|---|
| while a table is folded | what was spilled, in the machine's temporary directory | |
| before the manifest | files that no snapshot names | a later compaction sweeps them when they are old |
| after it | the snapshot | |
| while files are removed | some of them | a later compaction removes them |

The pipeline goes on meanwhile: the feed is read as it was when the compaction began, and none of its manifests changes.
"""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.compact.files.lineage import lineages
from airflow_parallel_apply.pipeline.compact.files.reading import FileContents
from airflow_parallel_apply.pipeline.compact.files.removal import remove_folded
from airflow_parallel_apply.pipeline.compact.files.table import TableInput
from airflow_parallel_apply.pipeline.compact.files.writing import SnapshotWriter
from airflow_parallel_apply.pipeline.compact.protocol import CompactOptions, CompactReport
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest, TableSchema
from airflow_parallel_apply.pipeline.encode.files.schemas import FileSchemas, schema_of
from airflow_parallel_apply.pipeline.errors import EncodeError, Unavailable
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.head import Head
from airflow_parallel_apply.pipeline.target.files.snapshots import SNAPSHOT, Contents, snapshots


def compact_directory(
    endpoint: Endpoint,
    options: CompactOptions,
    *,
    log: LogReader,
    report: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> CompactReport:
    """See `compact.open.compact`."""
    address = FilesAddress.parse(endpoint.url)
    dataset = snapshots(address)
    dataset.sweep()
    contents = Contents.of(address)
    made = _fold(address, options, contents, log, report, cancelled)
    newest = dataset.newest()
    removed = remove_folded(address, options.grace) if options.remove else ()
    rows: Counter[str] = Counter()
    if newest is not None:
        rows.update({table.table: 0 for table in newest.tables})
        for file in newest.files:
            rows[file.table] += file.rows
    return CompactReport(
        seqno=None if newest is None else newest.positions[SNAPSHOT],
        made=made is not None,
        rows=dict(rows),
        bytes_=0 if newest is None else sum(file.bytes_ for file in newest.files),
        files=() if newest is None else tuple(dataset.place.url(file.path) for file in newest.files),
        replaced=made or (),
        removed=removed,
    )


def _fold(
    address: FilesAddress,
    options: CompactOptions,
    contents: Contents,
    log: LogReader,
    report: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> tuple[str, ...] | None:
    """Make a snapshot; tables that others have replaced. None where there is nothing new, or another one was faster."""
    until = _until(contents, options, log)
    if until is None:
        return None
    files = (*contents.folded, *contents.behind(until))
    if not files:
        return None
    tables, replaced = lineages(log.state().relations, files)
    schemas = FileSchemas((*contents.feed, *([] if contents.snapshot is None else [contents.snapshot])))
    reader = FileContents(address.place(), schemas, kept_bytes=options.memory_bytes // 4)
    folded = set(contents.folded)

    def opened(file: DataFile) -> Iterator[pa.RecordBatch]:
        is_folded = file in folded
        for batch in reader.batches(file):
            if cancelled():
                raise Unavailable("it was cancelled", op="compact")
            seqnos = batch.column(batch.num_columns - 5).to_numpy()
            counts = (seqnos <= until) & (is_folded | (seqnos > contents.seqno))
            yield batch if counts.all() else batch.filter(pa.array(np.asarray(counts)))

    dataset = snapshots(address)
    writer = SnapshotWriter(dataset, address.format)
    written: list[TableSchema] = []
    try:
        with tempfile.TemporaryDirectory(prefix="parallel-apply-compact-") as directory:
            for lineage in tables:
                report(lineage.newest.name)
                typing = row_typing(lineage.newest, address.texts_of(lineage.newest.name))
                own = tuple(file for file in files if lineage.stage_of(file.relation_id) is not None)
                reader.keep(own)
                table = TableInput(
                    lineage=lineage,
                    typing=typing,
                    files=own,
                    opened=opened,
                    memory_bytes=options.memory_bytes,
                    directory=Path(directory),
                )
                writer.write(typing, lineage.newest.relation_id, table.rows())
                written.append(schema_of(typing, lineage.newest.relation_id))
        manifest = _manifest(address, contents, until, written, writer.files)
    except BaseException:
        writer.discard()
        raise
    # An error does not tell that there is no manifest: a later compaction sweeps files that none names.
    if not dataset.commit(manifest):
        writer.discard()
        return None
    return replaced


def _until(contents: Contents, options: CompactOptions, log: LogReader) -> int | None:
    """The last transaction to fold; None where the snapshot has it."""
    head = Head.of(contents.feed[-1] if contents.feed else None)
    if not head.positions:
        return None
    if head.log_id != log.identity.log_id:
        raise EncodeError(
            f"the directory has the changes of log {head.log_id}, and not of {log.identity.log_id}",
            op="compact",
            pipeline=head.pipeline,
            hint="Name the log that the pipeline reads: --log-url.",
        )
    watermark = low_watermark(head.positions)
    until = watermark if options.until_seqno is None else min(watermark, options.until_seqno)
    return until if until > contents.seqno else None


def _manifest(
    address: FilesAddress, contents: Contents, until: int, schemas: list[TableSchema], files: list[DataFile]
) -> FileManifest:
    former = contents.snapshot
    return FileManifest(
        version=0 if former is None else former.version + 1,
        log_id=contents.feed[-1].log_id,
        format=address.format,
        writer=uuid.uuid4().hex[:12],
        created=datetime.now(UTC),
        positions={SNAPSHOT: until},
        kept_as_text=tuple(sorted(address.texts)),
        tables=tuple(schemas),
        files=tuple(files),
    )

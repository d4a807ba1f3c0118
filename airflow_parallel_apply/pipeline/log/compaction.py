"""Merging small segments, and removing files that no version of the log can name any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.log.directory import (
    ROWS_SUFFIX,
    TRANSACTIONS_SUFFIX,
    LogDirectory,
    file_errors,
    is_temporary,
)
from airflow_parallel_apply.pipeline.log.manifest import LogView
from airflow_parallel_apply.pipeline.log.options import WriterOptions, memory_bytes
from airflow_parallel_apply.pipeline.log.protocol import Segment
from airflow_parallel_apply.pipeline.log.segment import (
    UNLINKED,
    Span,
    in_log_order,
    read_transactions,
    verify_segment,
    write_segment,
)

_SUFFIXES: Final = (ROWS_SUFFIX, TRANSACTIONS_SUFFIX)

Run = tuple[Segment, ...]


def segment_name(version: int, writer: str, number: int) -> str:
    """Unique per writer. Starts with the one version that can publish the segment, see `sweep`."""
    return f"{version:012d}-{writer}-{number:06d}"


def choose_runs(segments: Sequence[Segment], options: WriterOptions) -> list[Run]:
    """Runs of adjacent segments that are worth a merge, each about one segment large."""
    return [merged for run in _small_runs(segments, options) if (merged := _worth(run, options))]


def merge(directory: LogDirectory, run: Run, name: str, *, bucket_count: int) -> Segment:
    """Write one segment with the rows and transactions of a run. What it reads it verifies: damage is not copied."""
    rows = []
    for segment in run:
        verify_segment(directory, segment)
        path = directory.rows_path(segment.name)
        with file_errors(path):
            rows.append(in_log_order(pq.read_table(path, columns=UNLINKED.names).cast(UNLINKED)))
    return write_segment(
        directory,
        name,
        Span(
            first_seqno=run[0].first_seqno,
            first_fragno=run[0].first_fragno,
            last_seqno=run[-1].last_seqno,
            last_fragno=run[-1].last_fragno,
            last_commit_time=run[-1].last_commit_time,
        ),
        pa.concat_tables(rows),
        pa.concat_tables([read_transactions(directory, segment) for segment in run]),
        bucket_count=bucket_count,
        expected_file_bytes=sum(segment.file_bytes for segment in run),
        order_version=min(segment.order_version for segment in run),
    )


def sweep(directory: LogDirectory, view: LogView, *, now: datetime, options: WriterOptions) -> None:
    """Remove files of crashed writers, and of merged segments whose grace is over.

    A segment that waits for version n can be published by version n only. So at version n or later an unnamed one
    is nobody's. One that waits for a later version may be a live writer's, however long that has slept: its age tells
    nothing, and it goes once another writer has made that version.
    """
    named = {segment.name for segment in view.state.segments}
    scanned = {retired.name for retired in view.retired if now - retired.since < options.superseded_grace}
    for path in _files(directory.segments):
        name = next((path.name.removesuffix(suffix) for suffix in _SUFFIXES if path.name.endswith(suffix)), None)
        if name is None or name in named or name in scanned:
            continue
        version = name.partition("-")[0]
        if version.isdigit() and int(version) <= view.version:
            _remove(path)
    for folder in (directory.root, directory.manifests):
        for path in _files(folder):
            if is_temporary(path) and _is_old(path, now, options):
                _remove(path)


def _small_runs(segments: Sequence[Segment], options: WriterOptions) -> Iterator[Run]:
    run: list[Segment] = []
    for segment in segments:
        fits = (
            options.is_small(segment)
            and sum(each.file_bytes for each in [*run, segment]) <= options.segment_file_bytes
            and sum(memory_bytes(each) for each in [*run, segment]) <= options.buffer_bytes
        )
        if not fits:
            yield tuple(run)
            run = []
        if options.is_small(segment):
            run.append(segment)
    yield tuple(run)


def _worth(run: Run, options: WriterOptions) -> Run:
    """The part of a run of small segments that should be merged now, or nothing."""
    if len(run) < 2:
        return ()
    files = sum(segment.file_bytes for segment in run)
    memory = sum(memory_bytes(segment) for segment in run)
    if files >= options.merged_file_bytes or memory >= options.buffer_bytes // 2:
        return run
    # An older merge that outweighs everything after it stays, else it would be rewritten with every few commits.
    while len(run) > options.small_segment_count and run[0].file_bytes * 2 > files:
        files -= run[0].file_bytes
        run = run[1:]
    return run if len(run) > options.small_segment_count else ()


def _files(folder: Path) -> list[Path]:
    with file_errors(folder):
        return list(folder.iterdir())


def _is_old(path: Path, now: datetime, options: WriterOptions) -> bool:
    try:
        touched = path.stat().st_mtime
    except FileNotFoundError:
        return False
    return now - datetime.fromtimestamp(touched, UTC) > options.orphan_age


def _remove(path: Path) -> None:
    with file_errors(path):
        path.unlink(missing_ok=True)

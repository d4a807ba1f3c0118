"""Segments without the rows of tables that were copied anew: what committed before the copy is part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.log.directory import LogDirectory, file_errors
from airflow_parallel_apply.pipeline.log.protocol import Segment
from airflow_parallel_apply.pipeline.log.segment import (
    UNLINKED,
    Span,
    in_log_order,
    read_transactions,
    verify_segment,
    write_segment,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.offset import Offset


def last_seqno_below(directory: LogDirectory, segments: Sequence[Segment], offset: Offset) -> int:
    """The last transaction that committed below an offset and ends in one of the segments; NO_SEQNO where none does."""
    for segment in reversed(segments):
        found = read_transactions(directory, segment).filter(pc.field("commit_offset") < offset)
        if found.num_rows:
            return int(pc.max(found.column("seqno")).as_py())
    return NO_SEQNO


def without_rows(
    directory: LogDirectory,
    segment: Segment,
    name: str,
    *,
    through: Mapping[int, int],
    bucket_count: int,
) -> Segment | None:
    """Write the segment anew without rows of these relations, of each up to a seqno. None where it has none of them.
    The transactions keep their numbers, their marks and their counts.
    """
    path = directory.rows_path(segment.name)
    with file_errors(path):
        seen = pq.read_table(path, columns=["relation_id", "seqno"])
    ids = pa.array(through, pa.int32())
    last = pc.take(pa.array(through.values(), pa.int64()), pc.index_in(seen.column("relation_id"), ids))
    doomed = pc.fill_null(pc.less_equal(seen.column("seqno"), last), False)
    if not pc.any(doomed).as_py():
        return None
    verify_segment(directory, segment)
    with file_errors(path):
        rows = pq.read_table(path, columns=UNLINKED.names).cast(UNLINKED)
    return write_segment(
        directory,
        name,
        Span(
            first_seqno=segment.first_seqno,
            first_fragno=segment.first_fragno,
            last_seqno=segment.last_seqno,
            last_fragno=segment.last_fragno,
            last_commit_time=segment.last_commit_time,
        ),
        in_log_order(rows.filter(pc.invert(doomed))),
        read_transactions(directory, segment),
        bucket_count=bucket_count,
        expected_file_bytes=segment.file_bytes,
        order_version=segment.order_version,
    )

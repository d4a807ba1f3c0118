"""Chooses the buckets that share a row group.

The bucket space is halved until no part has much more than its share of the rows, so every range starts and ends
at a multiple of its own width: with 2, 4, 8 … channels a full range lies in one channel, and pruning is exact. A
bucket is split only when it alone is larger than a row group should be, then in (seqno, fragno) order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_parallel_apply.pipeline.log.protocol import RowGroup

MAX_GROUPS: Final = 64
GROUP_FILE_BYTES: Final = 256 * 2**10
"""A row group smaller than this costs more in footer and page headers than it saves by pruning."""
GROUP_MEMORY_BYTES: Final = 16 * 2**20
"""About the most that a row group of values that compress well takes in memory: it is gathered, and read, at once."""
_TOLERANCE: Final = 1.25


def cluster(
    bucket: npt.NDArray[np.int32], *, bucket_count: int, file_bytes: int, memory_bytes: int
) -> tuple[tuple[RowGroup, ...], npt.NDArray[np.intp]]:
    """Row groups for rows in (seqno, fragno) order, and the permutation that puts the rows in file order.

    `file_bytes` is the expected size of the file, `memory_bytes` what the rows take now.
    """
    rows = len(bucket)
    if not rows:
        return (), np.empty(0, dtype=np.intp)
    wanted = min(MAX_GROUPS, max(1, file_bytes // GROUP_FILE_BYTES, memory_bytes // GROUP_MEMORY_BYTES))
    limit = max(1, int(rows / wanted * _TOLERANCE)) if wanted > 1 else rows
    ends = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=bucket_count))])
    ranges = list(_halve(ends, 0, bucket_count, limit))
    group_of_bucket = np.zeros(bucket_count, dtype=np.uint16)
    for number, (first, stop) in enumerate(ranges):
        group_of_bucket[first:stop] = number
    # Stable, and a radix sort for 16-bit numbers.
    order = np.argsort(group_of_bucket[bucket], kind="stable")
    groups = tuple(
        RowGroup(first_bucket=first, last_bucket=stop - 1, row_count=count)
        for first, stop in ranges
        for count in _pieces(int(ends[stop] - ends[first]), limit)
    )
    return groups, order


def _halve(ends: npt.NDArray[np.int64], first: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    rows = ends[stop] - ends[first]
    if not rows:
        return
    if rows <= limit or stop - first == 1:
        yield first, stop
        return
    middle = (first + stop) // 2
    yield from _halve(ends, first, middle, limit)
    yield from _halve(ends, middle, stop, limit)


def _pieces(rows: int, limit: int) -> list[int]:
    """Equal parts, none above twice the limit: splitting a range that is a little too large gains nothing."""
    count = max(1, rows // limit)
    return [rows // count + (1 if number < rows % count else 0) for number in range(count)]

"""The footers of row files, and all that they tell of the rows without reading any."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.log.directory import file_errors
from airflow_parallel_apply.pipeline.log.schema import WIDTH


def widest_values(paths: Iterable[str]) -> int | None:
    """Bytes of the values of the widest row in row files. None where an older version wrote one of them. Errors:
    `LogError`.
    """
    widest = 0
    for path in paths:
        with file_errors(Path(path)):
            found = _widest_values(path)
        if found is None:
            return None
        widest = max(widest, found)
    return widest


@lru_cache(maxsize=4096)
def _widest_values(path: str) -> int | None:
    try:
        metadata = pq.read_metadata(path)
    except pa.ArrowInvalid:
        # Damaged since its checksum was compared: whoever reads its rows tells that better.
        return None
    names = metadata.schema.names
    if WIDTH not in names:
        return None
    column = names.index(WIDTH)
    found = [metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups)]
    if not all(statistics is not None and statistics.has_min_max for statistics in found):
        return None
    return max((statistics.max for statistics in found), default=0)

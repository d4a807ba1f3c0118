"""The splitter of rows in Spark: its own range partitioning, as `pipeline.encode.splitter` promises it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_parallel_apply.pipeline.encode.splitter import check_count
from airflow_parallel_apply.spark.access import column_functions


def split_frame(frame: Any, keys: Sequence[str], count: int) -> Any:
    """The same rows in at most `count` partitions, which are ranges of the keys. Spark samples the keys when the frame
    is executed; a partition is opened by its task. Errors: `ConfigurationError` for a count that is none.
    """
    check_count(count)
    if not keys:
        return frame.repartition(count)
    f = column_functions(frame)
    # Spark puts nulls first by itself.
    return frame.repartitionByRange(count, *(f.col(_quoted(key)).asc_nulls_last() for key in keys))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

"""The splitters' contract: any rows → ranges of their keys of about equal size, each opened by the worker that uses it.

| rows are in | split by | a range is opened by |
|---|---|---|
| Arrow, in one process | `encode.ranges.cursors` | the pool's thread that calls `Cursor.open` |
| Spark | `spark.splitter.split_frame` | the task of its partition |

Both promise:

- Each row lies in one range, all rows of a key in the same, and each range above the one before it. Keys compare as
  Arrow sorts them: texts by their bytes, -0 equals 0, NaN above all numbers, NULL above everything.
- The bounds come from a sample of `count`² rows or more, or of all rows, if there are fewer. There are at most `count`
  ranges; a key with more rows than a range should have is never divided.
- Without rows there is no range, or an empty one. Without key columns rows are told apart by their place.

`tests/contract/splitters.py` holds both to it.
"""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

MAX_RANGES: Final = 256


def check_count(count: int, name: str = "ranges") -> None:
    """Refuse what is no number of ranges, or of workers."""
    if not 1 <= count <= MAX_RANGES:
        raise ConfigurationError(f"parameter {name}: {count!r} is not usable", hint=f"{name} takes 1 to {MAX_RANGES}.")

"""Filling what a key's last change did not send from the changes before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.apply.net_changes import ENDS, Codes, Numbers
from airflow_parallel_apply.pipeline.model.copy_text import line, values_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenKey:
    """The newest key, whose changes may go on in the next batch."""

    key: str
    first: int
    last: int
    seqno: int
    values: pa.StringArray
    unsent: frozenset[int]


def compose(
    codes: Codes,
    values: pa.StringArray,
    unsent: pa.StringArray,
    starts: Numbers,
    lasts: Numbers,
    carried: OpenKey | None,
) -> tuple[pa.StringArray, Numbers, dict[int, frozenset[int]]]:
    """Fill what each key's last change did not send from the changes before it.

    Returns the values with composed rows appended, the row to take of each key, and what is still unsent by group.
    """
    is_partial = unsent.is_valid().to_numpy(zero_copy_only=False)
    remaining: dict[int, frozenset[int]] = {}
    chosen = lasts.copy()
    added: list[str] = []
    for group in np.flatnonzero(is_partial[lasts]):
        last, start = int(lasts[group]), int(starts[group])
        missing = set(_unsent_columns(unsent[last]))
        older = carried if group == 0 else None
        if last > start or older is not None:
            row = values_of(values[last].as_py())
            found = _look_back(codes, values, unsent, range(last - 1, start - 1, -1), missing, row)
            if older is not None and missing and not found and older.last not in ENDS:
                _fill(row, missing, values_of(older.values[0].as_py()), older.unsent)
            chosen[group] = len(values) + len(added)
            added.append(line(row))
        if missing:
            remaining[int(group)] = frozenset(missing)
    if added:
        values = pa.concat_arrays([values, pa.array(added, values.type)])
    return values, chosen, remaining


def _look_back(
    codes: Codes,
    values: pa.StringArray,
    unsent: pa.StringArray,
    places: range,
    missing: set[int],
    row: list[str | None],
) -> bool:
    """Fill `row` from older changes of its key; True when nothing older counts."""
    for place in places:
        if not missing or codes[place] in ENDS:
            return True
        _fill(row, missing, values_of(values[place].as_py()), _unsent_columns(unsent[place]))
    return False


def _fill(
    row: list[str | None],
    missing: set[int],
    older: list[str | None],
    older_unsent: frozenset[int],
) -> None:
    for column in missing.difference(older_unsent):
        row[column] = older[column]
        missing.discard(column)


def _unsent_columns(bitmap: pa.StringScalar) -> frozenset[int]:
    return frozenset(column for column, mark in enumerate(bitmap.as_py() or "") if mark == "1")


def bitmaps(unsent: list[frozenset[int]], width: int) -> pa.StringArray:
    """The unsent columns of each row as `NetChanges.unsent` has them. `width`: number of columns."""
    marks = np.full((len(unsent), width), ord("0"), dtype=np.uint8)
    for number, columns in enumerate(unsent):
        if columns:
            marks[number, list(columns)] = ord("1")
    offsets = np.arange(0, (len(unsent) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(unsent), pa.py_buffer(offsets), pa.py_buffer(marks))

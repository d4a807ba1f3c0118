"""Ranges of keys over Arrow rows in this process: bounds from a sample, cursors that find their rows when opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.pieces import PIECE_BYTES
from airflow_parallel_apply.pipeline.encode.splitter import check_count

BATCH_ROWS: Final = 65_536
"""Rows that a cursor gives at once, at most."""

_LEAST_SAMPLE: Final = 4_096
"""The square of few ranges is a small sample, and they would differ much in size."""

Bound: TypeAlias = tuple[pa.Scalar, ...]
"""One comparable value for each key column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The rows from a bound on, up to but not including another one; None: no bound. Opening it reads all rows' keys
    and copies its own rows, so it is opened in the worker that uses them. Any number may be open at the same time.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    lower: Bound | None = None
    upper: Bound | None = None

    def open(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in the order in which they came."""
        return _gathered(map(self._found, self.rows.to_batches(max_chunksize=BATCH_ROWS)))

    def _found(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = self._mask(batch)
        return batch if mask is None else batch.filter(mask)

    def _mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        if self.lower is None and self.upper is None:
            return None
        columns = [comparable(batch.column(key)) for key in self.keys]
        above = None if self.lower is None else _at_or_above(columns, self.lower)
        below = None if self.upper is None else pc.invert(_at_or_above(columns, self.upper))
        return above if below is None else below if above is None else pc.and_(above, below)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """A cursor over rows that have no key."""

    rows: pa.Table

    def open(self) -> Iterator[pa.RecordBatch]:
        return _gathered(self.rows.to_batches(max_chunksize=BATCH_ROWS))


def cursors(rows: pa.Table, keys: Sequence[str], count: int) -> Sequence[Cursor | _Slice]:
    """Split rows by key columns into at most `count` ranges, which ascend; by their places where there is no key.

    The same rows give the same ranges. Errors: `ConfigurationError` for a count that is none.
    """
    check_count(count)
    if not rows.num_rows:
        return []
    if not keys:
        size = -(-rows.num_rows // count)
        return [_Slice(rows=rows.slice(start, size)) for start in range(0, rows.num_rows, size)]
    bounds: list[Bound | None] = [None, *_bounds(rows, keys, count), None]
    return [Cursor(rows=rows, keys=tuple(keys), lower=lower, upper=upper) for lower, upper in pairwise(bounds)]


def comparable(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Values that compare as keys do: -0 as 0, NaN above all numbers. A null stays one."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    if not pa.types.is_floating(column.type):
        return column
    numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    ordered = np.where(bits < 0, np.int64(-(2**63)) - bits - 1, bits)
    ordered = np.where(np.isnan(numbers), np.int64(2**63 - 1), ordered)
    return pa.array(ordered, mask=column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: a narrow range finds few rows in each, and encoders work by columns."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > PIECE_BYTES):
            yield _joined(held)
            held, rows, size = [], 0, 0
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _bounds(rows: pa.Table, keys: Sequence[str], count: int) -> list[Bound]:
    """The first keys of all ranges but the first, ascending, none twice."""
    size = max(count * count, _LEAST_SAMPLE)
    sample = rows.select(list(keys))
    if rows.num_rows > size:
        chosen = np.sort(np.random.default_rng(rows.num_rows).choice(rows.num_rows, size, replace=False))
        sample = sample.take(pa.array(chosen))
    columns = pa.table(
        [comparable(sample.column(key)) for key in keys], names=[str(place) for place in range(len(keys))]
    )
    order = pc.sort_indices(columns, sort_keys=[(name, "ascending") for name in columns.column_names])
    columns = columns.take(order)
    return [_key_at(columns, place) for place in _cuts(columns, count)]


def _cuts(columns: pa.Table, count: int) -> list[int]:
    """Places in sorted rows at which ranges begin, each with a key that is not the one before it. A key with more rows
    than a fair share takes no other along, as far as there are ranges.
    """
    starts = np.concatenate(([0], np.flatnonzero(~same_as_next(columns)) + 1)) if columns.num_rows > 1 else np.zeros(1)
    starts = starts.astype(np.int64)
    if len(starts) <= count:
        return [int(start) for start in starts[1:]]
    cuts: list[int] = []
    begun = 0
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), columns.num_rows], strict=True):
        left = count - len(cuts)
        if left == 1:
            break
        fair = (columns.num_rows - begun) / left
        if start > begun and end - begun > fair and end - begun - fair > fair - (start - begun):
            cuts.append(start)
            begun = start
    return cuts


def same_as_next(columns: pa.Table) -> npt.NDArray[np.bool_]:
    """Tell for each row but the last whether the next one has the same key; equal nulls are one."""
    same = np.ones(columns.num_rows - 1, dtype=np.bool_)
    for column in columns.columns:
        values = column.combine_chunks()
        here, there = values.slice(0, len(values) - 1), values.slice(1)
        equal = pc.or_(pc.fill_null(pc.equal(here, there), False), pc.and_(here.is_null(), there.is_null()))
        same &= equal.to_numpy(zero_copy_only=False)
    return same


def _key_at(columns: pa.Table, place: int) -> Bound:
    return tuple(column[place] for column in columns.columns)


def _at_or_above(columns: Sequence[pa.Array], bound: Bound) -> pa.BooleanArray:
    """Compare column by column, from the last one to the first."""
    found: pa.BooleanArray | None = None
    for column, limit in zip(reversed(columns), reversed(bound), strict=True):
        if limit.is_valid:
            above = pc.fill_null(
                pc.greater(column, limit) if found is not None else pc.greater_equal(column, limit), True
            )
            equal = pc.fill_null(pc.equal(column, limit), False)
        else:
            above = pa.array(np.zeros(len(column), dtype=np.bool_)) if found is not None else column.is_null()
            equal = column.is_null()
        found = above if found is None else pc.or_(above, pc.and_(equal, found))
    if found is None:
        raise AssertionError("a bound has at least one value")
    return found

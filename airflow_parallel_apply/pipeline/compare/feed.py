"""A feed's changes folded for a comparison, in memory: the rows that a table has after all of them.

Each change finds its row by the key that the table had then. So changes are folded in stages: those under one key, then
those under the next one, which begin with the rows that are left.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.compare.protocol import SourceTable, TableRefused
from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.model.copy_text import values_of

_KEY: Final = "key"
"""Beside the marks: the number of the key that the change was made under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a table under one key. `values`: the compared columns as the source's texts, null where there are
    none. `marks`: the columns of `CHANGE`. `key`: names of columns; none: rows are told apart by all their values.
    """

    values: pa.Table
    marks: pa.Table
    key: tuple[str, ...]


def changes_of(read: pa.Table, table: SourceTable, names: Sequence[str], key: tuple[str, ...] | None = None) -> Changes:
    """The changes in a feed that was read. `names`: how the columns of `CHANGE` are called, which a table that has
    columns of such names itself has underscores for. `key`: None where the feed does not say it; it is then the one of
    now.
    """
    return Changes(
        values=pa.table({name: _texts_of(read, name, names) for name in table.columns}),
        marks=pa.table({one.name: read.column(name).cast(one.type) for one, name in zip(CHANGE, names, strict=True)}),
        key=tuple(table.key or ()) if key is None else key,
    )


def current_rows(found: Sequence[Changes], table: SourceTable) -> pa.Table:
    """The rows after all changes, in any order. Errors: `TableRefused` for a key that the table has no columns for."""
    if not table.columns:
        raise TableRefused("it has no columns, and rows without values are not compared")
    rows = pa.table({name: pa.array([], pa.string()) for name in table.columns})
    for stage in _stages(found):
        rows = _as_multiset(rows, stage) if not stage.key else _by_key(rows, stage)
    return rows


def _texts_of(read: pa.Table, name: str, change_names: Sequence[str]) -> pa.Array:
    if name not in read.column_names or name in change_names:
        return pa.nulls(len(read), pa.string())
    return texts(read.column(name).combine_chunks()).cast(pa.string())


def _stages(found: Sequence[Changes]) -> Iterator[Changes]:
    """The changes behind the last truncate, in their order, as long as the key stays the same."""
    keys = list(dict.fromkeys(one.key for one in found))
    numbered = [one.marks.append_column(_KEY, pa.array([keys.index(one.key)] * len(one.marks))) for one in found]
    values, marks = pa.concat_tables([one.values for one in found]), pa.concat_tables(numbered)
    order = pc.sort_indices(marks, sort_keys=[("_seqno", "ascending"), ("_fragno", "ascending")])
    values, marks = values.take(order).combine_chunks(), marks.take(order).combine_chunks()
    truncates = np.flatnonzero(pc.equal(marks.column("_operation"), "truncate").to_numpy())
    begin = int(truncates[-1]) + 1 if len(truncates) else 0
    numbers = marks.column(_KEY).to_numpy()
    switches = np.flatnonzero(np.diff(numbers)) + 1
    for first, end in pairwise([begin, *switches[switches > begin].tolist(), len(numbers)]):
        if first < end:
            count = end - first
            yield Changes(values=values.slice(first, count), marks=marks.slice(first, count), key=keys[numbers[first]])


def _by_key(rows: pa.Table, stage: Changes) -> pa.Table:
    """The last change of each key decides."""
    missing = [name for name in stage.key if name not in rows.column_names]
    if missing:
        raise TableRefused(
            f"rows were told apart by {missing[0]}, a column that the table has no more: compact the feed"
        )
    values = pa.concat_tables([rows, stage.values])
    operations = pa.chunked_array(
        [pa.array(["insert"] * len(rows), pa.string()), *stage.marks.column("_operation").chunks]
    )
    if pc.any(pc.is_valid(stage.marks.column("_unsent"))).as_py():
        values = _with_unsent(values, stage)
    keys = pc.binary_join_element_wise(*(values.column(name) for name in stage.key), "\0").combine_chunks()
    if keys.null_count:
        raise TableRefused(f"rows lack {', '.join(stage.key)}, by which they are told apart since: compact the feed")
    codes = keys.dictionary_encode().indices.to_numpy()
    _, from_the_end = np.unique(codes[::-1], return_index=True)
    last = pa.array(len(codes) - 1 - from_the_end)
    return values.take(last).filter(pc.not_equal(operations.take(last), "delete"))


def _with_unsent(values: pa.Table, stage: Changes) -> pa.Table:
    """Values that were not sent are those of the row before, which may have had another key. `values`: the rows before
    the stage, and its own.
    """
    rows = values.to_pylist()
    last = {tuple(row[name] for name in stage.key): row for row in rows[: len(rows) - len(stage.marks)]}
    for row, mark in zip(rows[len(rows) - len(stage.marks) :], stage.marks.to_pylist(), strict=True):
        key = tuple(row[name] for name in stage.key)
        former = key if mark["_old_key"] is None else tuple(values_of(mark["_old_key"]))
        for name in json.loads(mark["_unsent"] or "[]"):
            if name in row and former in last:
                row[name] = last[former][name]
        if mark["_operation"] != "delete":
            last[key] = row
    return pa.Table.from_pylist(rows, schema=values.schema)


def _as_multiset(rows: pa.Table, stage: Changes) -> pa.Table:
    counts = Counter(_lines(rows))
    for operation, row in zip(stage.marks.column("_operation").to_pylist(), _lines(stage.values), strict=True):
        counts[row] += -1 if operation == "delete" else 1
    left = list(counts.elements())
    return pa.table(
        {name: pa.array([row[place] for row in left], pa.string()) for place, name in enumerate(rows.column_names)}
    )


def _lines(rows: pa.Table) -> Iterator[tuple[str | None, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True)

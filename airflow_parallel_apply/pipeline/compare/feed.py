"""A feed's changes folded for a comparison, in memory: the rows that a table has after all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.compare.protocol import SourceTable
from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.model.copy_text import values_of


def changes_of(read: pa.Table, table: SourceTable, names: Sequence[str]) -> pa.Table:
    """The compared columns as the source's texts, null where there are none, and those that say what became of a row.
    `names`: how the latter are called, which a table that has columns of such names itself has underscores for.
    """
    columns = {name: _texts_of(read, name, names) for name in table.columns}
    return pa.table({**columns, **{one: read.column(name) for one, name in zip(CHANGE.names, names, strict=True)}})


def current_rows(changes: pa.Table, table: SourceTable) -> pa.Table:
    """The rows after all changes, in any order."""
    changes = changes.sort_by([("_seqno", "ascending"), ("_fragno", "ascending")])
    changes = _behind_last_truncate(changes.combine_chunks())
    current = _by_key(changes, table) if table.key is not None else _as_multiset(changes, table)
    return current.select(table.columns)


def _texts_of(read: pa.Table, name: str, change_names: Sequence[str]) -> pa.Array:
    if name not in read.column_names or name in change_names:
        return pa.nulls(len(read), pa.string())
    return texts(read.column(name).combine_chunks()).cast(pa.string())


def _behind_last_truncate(changes: pa.Table) -> pa.Table:
    found = np.flatnonzero(pc.equal(changes.column("_operation"), "truncate").to_numpy(zero_copy_only=False))
    return changes.slice(int(found[-1]) + 1) if len(found) else changes


def _by_key(changes: pa.Table, table: SourceTable) -> pa.Table:
    """The last change of each key decides."""
    if pc.any(pc.is_valid(changes.column("_unsent"))).as_py():
        changes = _with_unsent(changes, table)
    keys = pc.binary_join_element_wise(*(changes.column(name) for name in table.key or ()), "\0")
    codes = keys.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, from_the_end = np.unique(codes[::-1], return_index=True)
    last = changes.take(pa.array(len(codes) - 1 - from_the_end))
    return last.filter(pc.not_equal(last.column("_operation"), "delete"))


def _with_unsent(changes: pa.Table, table: SourceTable) -> pa.Table:
    """Values that were not sent are those of the row before, which may have had another key."""
    rows = changes.to_pylist()
    last: dict[tuple[str | None, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in table.key or ())
        former = key if row["_old_key"] is None else tuple(values_of(row["_old_key"]))
        for name in json.loads(row["_unsent"] or "[]"):
            if name in row and former in last:
                row[name] = last[former][name]
        if row["_operation"] != "delete":
            last[key] = row
    return pa.Table.from_pylist(rows, schema=changes.schema)


def _as_multiset(changes: pa.Table, table: SourceTable) -> pa.Table:
    counts: Counter[tuple[str | None, ...]] = Counter()
    values = zip(*(changes.column(name).to_pylist() for name in table.columns), strict=True)
    for operation, row in zip(changes.column("_operation").to_pylist(), values, strict=True):
        counts[row] += -1 if operation == "delete" else 1
    rows = list(counts.elements())
    return pa.table(
        {name: pa.array([row[place] for row in rows], pa.string()) for place, name in enumerate(table.columns)}
    )

"""Replaying rows of the log one after the other: their effect on a table as net changes, which are then merged.

Here a row may take another key and leave a column unsent, whose value is then the one that the table has under a former
key. Everything else that follows from one change of a row to the next is known from the changes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.net_changes import AS_IMAGE, NET, NetChanges, codes_of
from airflow_parallel_apply.pipeline.errors import LogError, TargetError
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import line, values_of

Values: TypeAlias = list[str | None]
Key: TypeAlias = tuple[str | None, ...]

_COLUMNS: Final = ("seqno", "operation", "values", "unsent", "old_key")


@dataclass(slots=True)
class _Row:
    """The state of one key's row. `existed`: before the replay. `base`: the key under which the table has the
    values of `unsent`.
    """

    existed: bool
    is_there: bool = False
    values: Values = field(default_factory=list)
    unsent: frozenset[int] = frozenset()
    base: Key = ()
    seqno: int = 0


def by_relation(batches: Iterable[pa.RecordBatch]) -> dict[int, pa.Table]:
    """The rows of each relation, in the order they have."""
    rows = pa.Table.from_batches(batches, schema=ROWS)
    column = rows.column("relation_id")
    return {found: rows.filter(pc.equal(column, found)) for found in pc.unique(column).to_pylist()}


def replayed(relation: Relation, rows: pa.Table, find: Callable[[Sequence[Key]], dict[Key, Values]]) -> NetChanges:
    """The net changes of rows in (seqno, fragno) order. `find`: the rows that the table has under keys. Errors:
    `TargetError` for a change that does not follow from those before it.
    """
    if not relation.key_indexes:
        lines = rows.column("values").combine_chunks()
        operations = AS_IMAGE[codes_of(rows.column("operation").combine_chunks())]
        seqnos = rows.column("seqno").to_numpy()
        return NetChanges(operations=operations, values=lines, seqnos=seqnos, unsent=None)
    found: dict[Key, _Row] = {}
    for change in zip(*(rows.column(name).to_pylist() for name in _COLUMNS), strict=True):
        _follow(relation, found, *change)
    lacking = [row for key, row in found.items() if row.is_there and row.unsent and row.base != key]
    at_base = find([row.base for row in lacking]) if lacking else {}
    for row in lacking:
        if row.base not in at_base:
            raise _error(relation, row.base, row.seqno, "is not in the table")
        for place in row.unsent:
            row.values[place] = at_base[row.base][place]
        row.unsent = frozenset()
    return _net(relation, found)


def _follow(
    relation: Relation,
    found: dict[Key, _Row],
    seqno: int,
    operation: str,
    values: str,
    unsent: str | None,
    old_key: str | None,
) -> None:
    if operation == Operation.KEY_LEFT:
        return
    new = values_of(values)
    key = _key(relation, new)
    if operation == Operation.INSERT:
        row = found.setdefault(key, _Row(existed=False))
        _require(relation, key, seqno, row, is_there=False)
        row.is_there, row.values, row.unsent, row.seqno = True, new, frozenset(), seqno
        return
    before = key if old_key is None else tuple(values_of(old_key))
    row = found.setdefault(before, _Row(existed=True, is_there=True, base=before))
    _require(relation, before, seqno, row, is_there=True)
    row.seqno = seqno
    if operation == Operation.DELETE:
        row.is_there = False
        return
    marks = frozenset(place for place, mark in enumerate(unsent or "") if mark == "1")
    if row.values:
        new = [row.values[place] if place in marks else value for place, value in enumerate(new)]
        marks &= row.unsent
    if before == key:
        row.values, row.unsent = new, marks
        return
    row.is_there = False
    arrived = found.setdefault(key, _Row(existed=False))
    _require(relation, key, seqno, arrived, is_there=False)
    arrived.is_there, arrived.values, arrived.unsent, arrived.seqno = True, new, marks, seqno
    arrived.base = row.base


def _net(relation: Relation, found: dict[Key, _Row]) -> NetChanges:
    width = len(relation.columns)
    kept = [(key, row, int(NET[int(row.existed), int(row.is_there)])) for key, row in found.items()]
    # A row that was there all the time, and of which nothing is known, was not changed.
    kept = [(key, row, code) for key, row, code in kept if code and (not row.is_there or row.values)]
    has_unsent = any(row.unsent for _, row, _ in kept if row.is_there)
    maps = [_bitmap(row.unsent if row.is_there else frozenset(), width) for _, row, _ in kept]
    return NetChanges(
        operations=np.array([code for _, _, code in kept], dtype=np.uint8),
        values=pa.array(
            [line(row.values if row.is_there else _alone(relation, key)) for key, row, _ in kept], pa.string()
        ),
        seqnos=np.array([row.seqno for _, row, _ in kept], dtype=np.int64),
        unsent=pa.array(maps, pa.string()) if has_unsent else None,
    )


def _require(relation: Relation, key: Key, seqno: int, row: _Row, *, is_there: bool) -> None:
    if row.is_there is not is_there:
        raise _error(relation, key, seqno, "is there already" if row.is_there else "is gone")


def _error(relation: Relation, key: Key, seqno: int, what: str) -> TargetError:
    return TargetError(
        f"key {' '.join(str(part) for part in key)}: the row {what}",
        op="commit",
        table=relation.name,
        seqno=seqno,
        hint="The log contradicts itself or the table; report it.",
    )


def _key(relation: Relation, values: Values) -> Key:
    if len(values) != len(relation.columns):
        raise LogError(f"a row that has not {len(relation.columns)} values", table=relation.name)
    return tuple(values[place] for place in relation.key_indexes)


def _alone(relation: Relation, key: Key) -> Iterator[str | None]:
    """A row of nothing but its key."""
    parts = iter(key)
    return (next(parts) if column.key else None for column in relation.columns)


def _bitmap(unsent: frozenset[int], width: int) -> str | None:
    return "".join("1" if place in unsent else "0" for place in range(width)) if unsent else None

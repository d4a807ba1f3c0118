"""From tuples on the wire to rows of the log: `RowBuilder`, for one batch of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.segment import UNLINKED
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import lines
from airflow_parallel_apply.pipeline.partition.key import (
    buckets,
    canonical,
    join,
    key_order,
    keyless_buckets,
    table_bucket,
)
from airflow_parallel_apply.pipeline.source.postgres.cells import NO_CELL, UNSENT, Cells, Wire

Numbers = npt.NDArray[np.int64]

NO_RELATION: Final = -1
"""The `relation_id` of a MESSAGE row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTable:
    """A relation with its log id.

    A partition's own replica identity decides what is sent of an old row, its root's how that is marked. So of a
    partitioned table with a key nothing but the key is believed.
    """

    relation: Relation
    is_partitioned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuples:
    """Changes of one shape: their message numbers, ascending, and where their first tuples begin.

    `old` is what stands before the new tuple: None, "K" (the key's columns) or "O" (all columns).
    """

    table: FollowedTable
    operation: Operation
    old: str | None
    messages: Numbers
    cursor: Numbers


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Rows to make of some messages. `values`, `keys`, `old_keys`: cell numbers, one line a row."""

    table: FollowedTable
    operation: Operation
    messages: Numbers
    half: int
    """1 for the second row of its message."""
    values: Numbers
    keys: Numbers
    old_keys: Numbers | None = None


class RowBuilder:
    """Builds the rows of one batch: give it everything, then `build` once."""

    def __init__(self, wire: Wire, groups: list[Tuples]) -> None:
        self._wire = wire
        cells_of_message = np.zeros(len(wire), dtype=np.int64)
        for group in groups:
            tuples = 2 if group.old is not None and group.operation is Operation.UPDATE else 1
            cells_of_message[group.messages] = tuples * len(group.table.relation.columns)
        self._first_cell: Numbers = np.cumsum(cells_of_message) - cells_of_message
        self._cells = Cells(wire, int(cells_of_message.sum()))
        ends = [self._walk(group) for group in groups]
        for group, end in zip(groups, ends, strict=True):
            if not np.array_equal(end, wire.ends[group.messages]):
                raise SourceError("pgoutput sent a change of unexpected length", op="capture")
        self.rows_of_message: Numbers = np.zeros(len(wire), dtype=np.int64)
        self._outputs: list[_Outputs] = []
        for group in groups:
            self._plan(group)
        self._statements: list[tuple[int, Operation, tuple[int, ...], tuple[bytes, ...]]] = []

    def add_statement(
        self, message: int, operation: Operation, relation_ids: tuple[int, ...], texts: tuple[bytes, ...]
    ) -> None:
        """A row for each relation; they follow one another."""
        self.rows_of_message[message] = len(relation_ids)
        self._statements.append((message, operation, relation_ids, texts))

    def build(self, seqno: Numbers, fragno: Numbers) -> tuple[pa.RecordBatch, Numbers, npt.NDArray[np.bool_]]:
        """The rows; the bytes of each one's values; and which of them changed a key while a column was not sent."""
        count = len(seqno)
        first_row = np.cumsum(self.rows_of_message) - self.rows_of_message
        relation_id = np.full(count, NO_RELATION, dtype=np.int32)
        operation = np.zeros(count, dtype=np.uint8)
        widths = np.zeros(count, dtype=np.int64)
        placed = [first_row[output.messages] + output.half for output in self._outputs]
        for output, rows in zip(self._outputs, placed, strict=True):
            relation_id[rows] = output.table.relation.relation_id
            operation[rows] = ord(output.operation)
            widths[rows] = output.values.shape[1]
        literals = self._place_statements(first_row, relation_id, operation, widths)
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(widths, out=offsets[1:])
        cells = np.full(int(offsets[-1]), NO_CELL, dtype=np.int64)
        for output, rows in zip(self._outputs, placed, strict=True):
            at = offsets[:-1][rows]
            for column in range(output.values.shape[1]):
                cells[at + column] = output.values[:, column]
        for row, numbers in literals:
            cells[offsets[row] : offsets[row] + len(numbers)] = numbers
        texts = self._cells.take(cells)
        values = lines(texts, pa.array(offsets))
        unsent, has_unsent = self._unsent(cells, offsets)
        keys, order, bucket = self._keys(placed, seqno, fragno)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(seqno),
                pa.array(fragno),
                pa.array(relation_id),
                _letters(operation),
                pa.array(bucket, pa.int32()),
                keys,
                pa.array(order),
                values,
                unsent,
                self._old_keys(placed, count),
            ],
            schema=UNLINKED,
        )
        row_bytes = pc.binary_length(values).to_numpy().astype(np.int64)
        return batch, row_bytes, has_unsent & (operation == ord(Operation.KEY_ARRIVED))

    def _walk(self, group: Tuples) -> Numbers:
        width = len(group.table.relation.columns)
        first_cell = self._first_cell[group.messages]
        end = self._cells.add(group.cursor, first_cell, width)
        if group.old is None or group.operation is Operation.DELETE:
            return end
        # One byte, N, between the old tuple and the new one.
        return self._cells.add(end + 1, first_cell + width, width)

    def _plan(self, group: Tuples) -> None:
        """Decide which rows a group's changes become."""
        relation = group.table.relation
        if relation.by_image:
            self._plan_images(group)
            return
        width = len(relation.columns)
        key = np.array(relation.key_indexes, dtype=np.int64)
        first = self._first_cell[group.messages][:, np.newaxis]
        columns = np.arange(width)
        if group.operation is Operation.DELETE or group.old is None:
            if group.operation is not Operation.INSERT and not len(key):
                raise _without_key(relation)
            values = first + columns
            if group.operation is Operation.DELETE:
                values[:, np.setdiff1d(columns, key)] = NO_CELL
            self._emit(group.table, group.operation, group.messages, 0, values, first + key)
            return
        if not len(key):
            raise _without_key(relation)
        old, new = first + columns, first + width + columns
        filled = columns if group.old == "O" and not group.table.is_partitioned else key
        for column in filled.tolist():
            self._cells.fill_unsent(new[:, column], old[:, column])
        moved = np.zeros(len(group.messages), dtype=np.bool_)
        for column in key.tolist():
            moved |= self._cells.differ(old[:, column], new[:, column])
        stays = ~moved
        self._emit(group.table, Operation.UPDATE, group.messages[stays], 0, new[stays], new[stays][:, key])
        if moved.any():
            left = np.full((int(moved.sum()), width), NO_CELL, dtype=np.int64)
            left[:, key] = old[moved][:, key]
            messages, old_keys = group.messages[moved], old[moved][:, key]
            self._emit(group.table, Operation.KEY_LEFT, messages, 0, left, old_keys)
            self._emit(group.table, Operation.KEY_ARRIVED, messages, 1, new[moved], new[moved][:, key], old_keys)

    def _plan_images(self, group: Tuples) -> None:
        """Changes of a table whose rows are told apart by all their values: an update takes one and puts another."""
        width = len(group.table.relation.columns)
        first = self._first_cell[group.messages][:, np.newaxis]
        old, new = first + np.arange(width), first + width + np.arange(width)
        no_key = old[:, :0]
        if group.operation is not Operation.UPDATE:
            self._emit(group.table, group.operation, group.messages, 0, old, no_key)
            return
        if group.old is None:
            raise _without_key(group.table.relation)
        for column in range(width):
            self._cells.fill_unsent(new[:, column], old[:, column])
        self._emit(group.table, Operation.KEY_LEFT, group.messages, 0, old, no_key)
        self._emit(group.table, Operation.KEY_ARRIVED, group.messages, 1, new, no_key, old)

    def _emit(
        self,
        table: FollowedTable,
        operation: Operation,
        messages: Numbers,
        half: int,
        values: Numbers,
        keys: Numbers,
        old_keys: Numbers | None = None,
    ) -> None:
        if len(messages):
            self.rows_of_message[messages] = half + 1
            self._outputs.append(_Outputs(table, operation, messages, half, values, keys, old_keys))

    def _place_statements(
        self,
        first_row: Numbers,
        relation_id: npt.NDArray[np.int32],
        operation: npt.NDArray[np.uint8],
        widths: Numbers,
    ) -> list[tuple[int, Numbers]]:
        """Rows of statements, and the cells of their texts."""
        texts = [text for _, _, relation_ids, words in self._statements for _ in relation_ids for text in words]
        cells = self._cells.add_literals(texts) if texts else np.zeros(0, dtype=np.int64)
        placed = []
        for message, kind, relation_ids, words in self._statements:
            for number, relation in enumerate(relation_ids):
                row = int(first_row[message]) + number
                relation_id[row] = relation
                operation[row] = ord(kind)
                widths[row] = len(words)
                placed.append((row, cells[: len(words)]))
                cells = cells[len(words) :]
        return placed

    def _unsent(self, cells: Numbers, offsets: npt.NDArray[np.int32]) -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
        count = len(offsets) - 1
        unsent = self._cells.status(cells) == UNSENT
        has_unsent = np.zeros(count, dtype=np.bool_)
        if not unsent.any():
            return pa.nulls(count, pa.string()), has_unsent
        has_unsent[np.searchsorted(offsets, np.flatnonzero(unsent), side="right") - 1] = True
        marks = pa.py_buffer(np.where(unsent, ord("1"), ord("0")).astype(np.uint8))
        bitmaps = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), marks)
        return pc.if_else(pa.array(has_unsent), bitmaps, None), has_unsent

    def _old_keys(self, placed: list[Numbers], count: int) -> pa.StringArray:
        found = [
            (rows, output.old_keys)
            for output, rows in zip(self._outputs, placed, strict=True)
            if output.old_keys is not None
        ]
        if not found:
            return pa.nulls(count, pa.string())
        lengths = np.zeros(count, dtype=np.int64)
        for rows, keys in found:
            lengths[rows] = keys.shape[1]
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        cells = np.full(int(offsets[-1]), NO_CELL, dtype=np.int64)
        for rows, keys in found:
            for column in range(keys.shape[1]):
                cells[offsets[rows] + column] = keys[:, column]
        return pc.if_else(pa.array(lengths > 0), lines(self._cells.take(cells), pa.array(offsets)), None)

    def _keys(self, placed: list[Numbers], seqno: Numbers, fragno: Numbers) -> tuple[pa.StringArray, Numbers, Numbers]:
        """Canonical keys, their order and buckets. Rows without a key sort as they came."""
        order = np.zeros(len(seqno), dtype=np.int64)
        bucket = keyless_buckets(seqno, fragno)
        place = np.full(len(seqno), NO_CELL, dtype=np.int64)
        parts: list[pa.StringArray] = []
        made = 0
        by_table: dict[int, list[tuple[_Outputs, Numbers]]] = {}
        for output, rows in zip(self._outputs, placed, strict=True):
            by_table.setdefault(id(output.table), []).append((output, rows))
        for group in by_table.values():
            table = group[0][0].table
            rows = np.concatenate([rows for _, rows in group])
            if table.relation.by_image:
                bucket[rows] = table_bucket(table.relation.name)
            kinds = table.relation.key_kinds
            if not kinds:
                continue
            cells = np.concatenate([output.keys for output, _ in group])
            columns = [canonical(kind, self._cells.take(cells[:, n])) for n, kind in enumerate(kinds)]
            if any(column.null_count for column in columns):
                raise SourceError("the source sent a change without its key", op="capture", table=table.relation.name)
            keys = join(columns)
            order[rows] = key_order(kinds, columns)
            name = table.relation.name
            bucket[rows] = buckets(name, keys) if table.relation.canonical else table_bucket(name)
            place[rows] = made + np.arange(len(rows))
            made += len(rows)
            parts.append(keys)
        if not parts:
            return pa.nulls(len(seqno), pa.string()), order, bucket
        missing = place == NO_CELL
        return pa.concat_arrays(parts).take(pa.array(place, mask=missing if missing.any() else None)), order, bucket


def _letters(operation: npt.NDArray[np.uint8]) -> pa.StringArray:
    offsets = np.arange(len(operation) + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(len(operation), pa.py_buffer(offsets), pa.py_buffer(operation))


def _without_key(relation: Relation) -> SourceError:
    return SourceError(
        "the source sent an update or delete of a table without a usable key",
        op="capture",
        table=relation.name,
        hint="Give the table a primary key, or a REPLICA IDENTITY USING INDEX.",
    )

"""From changes as a source sends them to rows of the log: `RowBuilder`, for one batch of messages.

Keys, old keys, the halves of a key change and the marks of what was not sent are made here for every source, by column.
A source says which cells (`cells`) each change has of its old and its new row.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.partition.key import (
    buckets,
    canonical,
    join,
    key_order,
    keyless_buckets,
    table_bucket,
)
from airflow_parallel_apply.pipeline.source.cells import NO_CELL, UNSENT, Cells, Numbers

NO_RELATION: Final = -1
"""The `relation_id` of a MESSAGE row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Inserts, updates or deletes of one table: their messages' numbers, ascending, and the cells of their rows, a line
    for each change.

    `new`: of inserts and updates. `old`: of deletes, and of updates that send one. `is_whole`: an old row is sent with
    all its columns; else nothing but its key is believed.
    """

    relation: Relation
    operation: Operation
    messages: Numbers
    old: Numbers | None = None
    new: Numbers | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Rows to make of some messages. `values`, `keys`, `old_keys`: cell numbers, one line a row."""

    relation: Relation
    operation: Operation
    messages: Numbers
    half: int
    """1 for the second row of its message."""
    values: Numbers
    keys: Numbers
    old_keys: Numbers | None = None


class RowBuilder:
    """Builds the rows of one batch: give it everything, then `build` once."""

    def __init__(self, cells: Cells, message_count: int, changes: Iterable[Changes]) -> None:
        self._cells = cells
        self.rows_of_message: Numbers = np.zeros(message_count, dtype=np.int64)
        self._outputs: list[_Outputs] = []
        for group in changes:
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
            relation_id[rows] = output.relation.relation_id
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

    def _plan(self, group: Changes) -> None:
        """Decide which rows a group's changes become."""
        relation = group.relation
        key = np.array(relation.key_indexes, dtype=np.int64)
        if relation.by_image:
            self._plan_images(group)
        elif group.operation is Operation.INSERT:
            new = _given(group.new, relation)
            self._emit(relation, group.operation, group.messages, 0, new, new[:, key])
        elif not len(key):
            raise _without_key(relation)
        elif group.operation is Operation.DELETE:
            self._plan_deletes(group, key)
        else:
            self._plan_updates(group, key)

    def _plan_deletes(self, group: Changes, key: Numbers) -> None:
        values = _given(group.old, group.relation).copy()
        values[:, np.setdiff1d(np.arange(values.shape[1]), key)] = NO_CELL
        self._emit(group.relation, group.operation, group.messages, 0, values, values[:, key])

    def _plan_updates(self, group: Changes, key: Numbers) -> None:
        relation, new, old = group.relation, _given(group.new, group.relation), group.old
        if old is None:
            self._emit(relation, group.operation, group.messages, 0, new, new[:, key])
            return
        for column in range(new.shape[1]) if group.is_whole else key.tolist():
            self._cells.fill_unsent(new[:, column], old[:, column])
        rekeyed = np.zeros(len(group.messages), dtype=np.bool_)
        for column in key.tolist():
            rekeyed |= self._cells.differ(old[:, column], new[:, column])
        stays = ~rekeyed
        self._emit(relation, Operation.UPDATE, group.messages[stays], 0, new[stays], new[stays][:, key])
        if rekeyed.any():
            left = np.full((int(rekeyed.sum()), new.shape[1]), NO_CELL, dtype=np.int64)
            left[:, key] = old[rekeyed][:, key]
            messages, old_keys = group.messages[rekeyed], old[rekeyed][:, key]
            self._emit(relation, Operation.KEY_LEFT, messages, 0, left, old_keys)
            self._emit(relation, Operation.KEY_ARRIVED, messages, 1, new[rekeyed], new[rekeyed][:, key], old_keys)

    def _plan_images(self, group: Changes) -> None:
        """Changes of a table whose rows are told apart by all their values: an update takes one and puts another."""
        relation, messages = group.relation, group.messages
        if group.operation is not Operation.UPDATE:
            rows = _given(group.new if group.operation is Operation.INSERT else group.old, relation)
            self._emit(relation, group.operation, messages, 0, rows, rows[:, :0])
            return
        old, new = _given(group.old, relation), _given(group.new, relation)
        for column in range(new.shape[1]):
            self._cells.fill_unsent(new[:, column], old[:, column])
        self._emit(relation, Operation.KEY_LEFT, messages, 0, old, old[:, :0])
        self._emit(relation, Operation.KEY_ARRIVED, messages, 1, new, new[:, :0], old)

    def _emit(
        self,
        relation: Relation,
        operation: Operation,
        messages: Numbers,
        half: int,
        values: Numbers,
        keys: Numbers,
        old_keys: Numbers | None = None,
    ) -> None:
        if len(messages):
            self.rows_of_message[messages] = half + 1
            self._outputs.append(_Outputs(relation, operation, messages, half, values, keys, old_keys))

    def _place_statements(
        self,
        first_row: Numbers,
        relation_id: npt.NDArray[np.int32],
        operation: npt.NDArray[np.uint8],
        widths: Numbers,
    ) -> list[tuple[int, Numbers]]:
        """Rows of statements, and the cells of their texts."""
        texts = [text for _, _, relation_ids, words in self._statements for _ in relation_ids for text in words]
        cells = self._cells.add(texts) if texts else np.zeros(0, dtype=np.int64)
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
            by_table.setdefault(output.relation.relation_id, []).append((output, rows))
        for group in by_table.values():
            relation = group[0][0].relation
            rows = np.concatenate([rows for _, rows in group])
            if relation.by_image:
                bucket[rows] = table_bucket(relation.name)
            kinds = relation.key_kinds
            if not kinds:
                continue
            cells = np.concatenate([output.keys for output, _ in group])
            columns = [canonical(kind, self._cells.take(cells[:, n])) for n, kind in enumerate(kinds)]
            if any(column.null_count for column in columns):
                raise _of_another_key(relation)
            keys = join(columns)
            order[rows] = key_order(kinds, columns)
            name = relation.name
            bucket[rows] = buckets(name, keys) if relation.canonical else table_bucket(name)
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


def _given(cells: Numbers | None, relation: Relation) -> Numbers:
    if cells is None:
        raise _without_key(relation)
    return cells


def _of_another_key(relation: Relation) -> SourceError:
    return SourceError(
        "the source sent a change without its key",
        op="capture",
        table=relation.name,
        hint="If a partition has a replica identity of its own, give it that of the whole table. If rows have NULL in "
        f"a column of the key, fill it in, and make the column NOT NULL. {_copied_anew(relation)}",
    )


def _without_key(relation: Relation) -> SourceError:
    without = f" without {listed(relation.computed)}, which the source does not send" if relation.computed else ""
    return SourceError(
        "the source sent an update or delete of a table without a usable key",
        op="capture",
        table=relation.name,
        hint=f"Unless it has one by now, give the table a primary key{without}, or let the source send whole old "
        "rows of it (REPLICA IDENTITY FULL). Under REPLICA IDENTITY NOTHING no key serves: set it to DEFAULT. "
        f"{_copied_anew(relation)}",
    )


def _copied_anew(relation: Relation) -> str:
    """The way past what the source has sent already."""
    return f"Then `{command_line('recopy', [relation.name])}` copies it anew, and the next run goes on from there."

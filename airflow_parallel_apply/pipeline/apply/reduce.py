"""The net change of every key of a unit, as columns: what a set-based merge needs instead of every change.

Whether the row existed before the unit is told by the key's first change (I, K: no; U, D, X: yes), whether it exists
after it by the last (I, U, K: yes; D, X: no), and its values are the last change's. A column that the last change did
not send has the value of the newest change before it that did, back to an insert; where none did, the old row's.

A table that is a multiset of rows (`Relation.by_image`) is not reduced here: each change becomes a row to delete or to
insert, and the target counts them, since only it has all of a unit's rows in one place.

Streaming: rows of one key are adjacent and in (seqno, fragno) order. Only the newest key is carried from one batch to
the next, folded into one row, so that memory does not grow with the number of a key's changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import LogError, TargetError
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import line, line_widths, values_of

Codes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

INSERT: Final = ord(Operation.INSERT)
UPDATE: Final = ord(Operation.UPDATE)
DELETE: Final = ord(Operation.DELETE)

_STARTS: Final = (INSERT, ord(Operation.KEY_ARRIVED))
"""The row did not exist before these, and they send every column."""
_ENDS: Final = (DELETE, ord(Operation.KEY_LEFT))
"""The row does not exist after these."""


def _table_of(codes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, dtype=np.bool_)
    table[list(codes)] = True
    return table


_AS_IMAGE: Final = np.arange(256, dtype=np.uint8)
"""What a change of a multiset does with the row that it carries."""
_AS_IMAGE[[ord(Operation.KEY_ARRIVED), ord(Operation.KEY_LEFT)]] = (INSERT, DELETE)

_IS_ROW: Final = _table_of((*_STARTS, UPDATE, *_ENDS))
_PRESENT_BEFORE: Final = _table_of((UPDATE, *_ENDS))
_PRESENT_AFTER: Final = _table_of((*_STARTS, UPDATE))
_NET: Final = np.array([[0, INSERT], [DELETE, UPDATE]], dtype=np.uint8)
"""By presence before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetChanges:
    """Net changes of distinct keys, in the order in which the keys came; of a multiset of rows, all changes.

    `operations`: INSERT, UPDATE or DELETE. `values`: a line of all columns; of a delete, the key's only, or of a
    multiset the whole row.
    `seqnos`: of each key's last change. `unsent`: one character a column, "1" where the old row's value stays; None
    when all was sent.
    """

    operations: Codes
    values: pa.StringArray
    seqnos: Numbers
    unsent: pa.StringArray | None

    def count(self, operation: int) -> int:
        """How many of this operation."""
        return int(np.count_nonzero(self.operations == operation))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """The newest key, whose changes may go on in the next batch."""

    key: str
    first: int
    last: int
    seqno: int
    values: pa.StringArray
    unsent: frozenset[int]


class Reducer:
    """Reduces the changes of one relation. Not thread-safe.

    Errors: `LogError` for rows that no log may hold in this place; `TargetError` for changes of one key that
    contradict each other, where that is cheap to see.
    """

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._width = len(relation.columns)
        self._open: _Open | None = None

    def feed(self, rows: pa.RecordBatch) -> Iterator[NetChanges]:
        """Net changes of the keys that are complete now. `rows`: `ROWS` of this relation only."""
        if rows.num_rows == 0:
            return
        codes = _codes(rows.column("operation"))
        values = rows.column("values")
        self._check_rows(rows, codes, values)
        seqnos = _numbers(rows.column("seqno"))
        if not self._relation.key_indexes:
            self._check_keyless(rows, codes, seqnos)
            codes = _AS_IMAGE[codes]
            yield NetChanges(operations=codes, values=values, seqnos=seqnos, unsent=None)
            return
        yield from self._feed_keyed(rows, codes, values, seqnos)

    def finish(self) -> Iterator[NetChanges]:
        """The net change of the last key."""
        found, self._open = self._open, None
        if found is None:
            return
        operation = _NET[int(_PRESENT_BEFORE[found.first]), int(_PRESENT_AFTER[found.last])]
        if operation == 0:
            return
        self._check_insert_complete(operation == INSERT and bool(found.unsent), found.key, found.seqno)
        unsent = found.unsent if operation == UPDATE else frozenset()
        yield NetChanges(
            operations=np.array([operation], dtype=np.uint8),
            values=found.values,
            seqnos=np.array([found.seqno], dtype=np.int64),
            unsent=_bitmaps([unsent], self._width) if unsent else None,
        )

    def _feed_keyed(
        self, rows: pa.RecordBatch, codes: Codes, values: pa.StringArray, seqnos: Numbers
    ) -> Iterator[NetChanges]:
        keys = rows.column("key")
        if keys.null_count:
            raise self._log_error("a row without a key in a table with one", int(seqnos[0]))
        same = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
        self._check_sequence(rows, codes, seqnos, same)
        starts = np.concatenate(([0], np.flatnonzero(~same) + 1))
        lasts = np.concatenate((starts[1:] - 1, [len(codes) - 1]))
        firsts = codes[starts]

        carried = self._open
        if carried is not None and carried.key == keys[0].as_py():
            self._check_order(int(seqnos[0]) < carried.seqno, carried.key, int(seqnos[0]))
            firsts[0] = carried.first
        else:
            yield from self.finish()
            carried = None

        chosen = lasts
        composed: dict[int, frozenset[int]] = {}
        unsent = rows.column("unsent")
        if unsent.null_count < len(unsent) or (carried is not None and carried.unsent):
            self._check_unsent(codes, unsent, keys, seqnos)
            values, chosen, composed = _compose(codes, values, unsent, starts, lasts, carried)

        self._open = _Open(
            key=keys[len(keys) - 1].as_py(),
            first=int(firsts[-1]),
            last=int(codes[lasts[-1]]),
            seqno=int(seqnos[-1]),
            values=values.take(pa.array(chosen[-1:])),
            unsent=composed.get(len(lasts) - 1, frozenset()),
        )
        operations = _NET[
            _PRESENT_BEFORE[firsts[:-1]].astype(np.intp), _PRESENT_AFTER[codes[lasts[:-1]]].astype(np.intp)
        ]
        kept = np.flatnonzero(operations)
        if len(kept) == 0:
            return
        operations = operations[kept]
        incomplete = [number for number, group in enumerate(kept) if composed.get(int(group))] if composed else []
        for number in incomplete:
            group = int(kept[number])
            self._check_insert_complete(
                operations[number] == INSERT, keys[int(lasts[group])].as_py(), int(seqnos[lasts[group]])
            )
        maps = [composed.get(int(group), frozenset()) for group in kept] if incomplete else None
        yield NetChanges(
            operations=operations,
            values=_pick(values, chosen[:-1][kept]),
            seqnos=seqnos[lasts[:-1][kept]],
            unsent=_bitmaps(maps, self._width) if maps is not None else None,
        )

    def _check_rows(self, rows: pa.RecordBatch, codes: Codes, values: pa.StringArray) -> None:
        if not _IS_ROW[codes].all():
            place = int(np.flatnonzero(~_IS_ROW[codes])[0])
            raise self._log_error(
                f"operation {chr(codes[place])} among the rows to reduce", rows.column("seqno")[place].as_py()
            )
        if values.null_count or not pc.all(pc.equal(line_widths(values), max(self._width, 1))).as_py():
            raise self._log_error(f"a row that has not {self._width} values", rows.column("seqno")[0].as_py())

    def _check_keyless(self, rows: pa.RecordBatch, codes: Codes, seqnos: Numbers) -> None:
        wrong = np.flatnonzero((codes == UPDATE) if self._relation.by_image else (codes != INSERT))
        if len(wrong):
            place = int(wrong[0])
            raise self._log_error(f"operation {chr(codes[place])} in a table without a key", int(seqnos[place]))
        if rows.column("unsent").null_count < rows.num_rows:
            raise self._log_error("a row without a key has a value that was not sent", int(seqnos[0]))

    def _check_sequence(self, rows: pa.RecordBatch, codes: Codes, seqnos: Numbers, same: npt.NDArray[np.bool_]) -> None:
        """Order inside a key; and presence from one change to the next, where the links say that none lies between.

        Links are ambiguous inside one transaction, and absent (NO_SEQNO) for keys with unsent columns: not judged.
        """
        if not same.any():
            return
        before, after = seqnos[:-1], seqnos[1:]
        wrong = same & (after < before)
        if not wrong.any():
            previous, following = _numbers(rows.column("previous_seqno")), _numbers(rows.column("next_seqno"))
            linked = same & (previous[1:] == before) & (following[:-1] == after) & (before != after)
            linked &= before != NO_SEQNO
            wrong = linked & (_PRESENT_AFTER[codes[:-1]] != _PRESENT_BEFORE[codes[1:]])
            if not wrong.any():
                return
            place = int(np.flatnonzero(wrong)[0])
            raise TargetError(
                f"key {rows.column('key')[place].as_py()}: operation {chr(codes[place + 1])} cannot follow "
                f"{chr(codes[place])} at seqno {before[place]}",
                seqno=int(after[place]),
                table=self._relation.name,
                hint="The log contradicts itself; do not go on, report it with the segment.",
            )
        place = int(np.flatnonzero(wrong)[0])
        self._check_order(True, rows.column("key")[place].as_py(), int(after[place]))

    def _check_order(self, wrong: bool, key: str, seqno: int) -> None:
        if wrong:
            raise self._log_error(f"changes of key {key} are not in order", seqno)

    def _check_unsent(self, codes: Codes, unsent: pa.StringArray, keys: pa.StringArray, seqnos: Numbers) -> None:
        partial = unsent.is_valid().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(partial & (codes != UPDATE))
        if len(wrong):
            place = int(wrong[0])
            raise self._log_error(
                f"key {keys[place].as_py()}: operation {chr(codes[place])} with unsent columns can only be replayed",
                int(seqnos[place]),
            )

    def _check_insert_complete(self, wrong: bool, key: str, seqno: int) -> None:
        if wrong:
            raise self._log_error(f"key {key} is inserted, and a column of it was never sent", seqno)

    def _log_error(self, message: str, seqno: int) -> LogError:
        return LogError(
            message, seqno=seqno, table=self._relation.name, hint="The log or the scan of it is at fault; report it."
        )


def _compose(
    codes: Codes,
    values: pa.StringArray,
    unsent: pa.StringArray,
    starts: Numbers,
    lasts: Numbers,
    carried: _Open | None,
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
            if older is not None and missing and not found and older.last not in _ENDS:
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
        if not missing or codes[place] in _ENDS:
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


def _bitmaps(unsent: list[frozenset[int]], width: int) -> pa.StringArray:
    marks = np.full((len(unsent), width), ord("0"), dtype=np.uint8)
    for number, columns in enumerate(unsent):
        if columns:
            marks[number, list(columns)] = ord("1")
    offsets = np.arange(0, (len(unsent) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(unsent), pa.py_buffer(offsets), pa.py_buffer(marks))


def _pick(values: pa.StringArray, chosen: Numbers) -> pa.StringArray:
    """The chosen rows; without a copy when they are neighbours."""
    first, last = int(chosen[0]), int(chosen[-1])
    if last - first + 1 == len(chosen) and (len(chosen) == 1 or (np.diff(chosen) == 1).all()):
        return values.slice(first, len(chosen))
    return values.take(pa.array(chosen))


def _codes(operations: pa.Array) -> Codes:
    """One letter a row, as bytes."""
    if not pa.types.is_string(operations.type):
        operations = operations.cast(pa.string())
    offsets = np.frombuffer(operations.buffers()[1], dtype=np.int32)[
        operations.offset : operations.offset + len(operations) + 1
    ]
    if operations.null_count or offsets[-1] - offsets[0] != len(operations):
        raise LogError("an operation that is not one letter", hint="The log was not written by this version.")
    return np.frombuffer(operations.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]


def _numbers(column: pa.Array) -> Numbers:
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers

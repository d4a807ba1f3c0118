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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.net_changes import (
    AS_IMAGE,
    INSERT,
    IS_ROW,
    NET,
    PRESENT_AFTER,
    PRESENT_BEFORE,
    UPDATE,
    Codes,
    NetChanges,
    Numbers,
    codes_of,
    numbers_of,
)
from airflow_parallel_apply.pipeline.apply.unsent import OpenKey, bitmaps, compose
from airflow_parallel_apply.pipeline.errors import LogError, TargetError
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.copy_text import line_widths


class Reducer:
    """Reduces the changes of one relation. Not thread-safe.

    Errors: `LogError` for rows that no log may hold in this place; `TargetError` for changes of one key that
    contradict each other, where that is cheap to see.
    """

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._width = len(relation.columns)
        self._open: OpenKey | None = None

    def feed(self, rows: pa.RecordBatch) -> Iterator[NetChanges]:
        """Net changes of the keys that are complete now. `rows`: `ROWS` of this relation only."""
        if rows.num_rows == 0:
            return
        codes = codes_of(rows.column("operation"))
        values = rows.column("values")
        self._check_rows(rows, codes, values)
        seqnos = numbers_of(rows.column("seqno"))
        if not self._relation.key_indexes:
            self._check_keyless(rows, codes, seqnos)
            codes = AS_IMAGE[codes]
            yield NetChanges(operations=codes, values=values, seqnos=seqnos, unsent=None)
            return
        yield from self._feed_keyed(rows, codes, values, seqnos)

    def finish(self) -> Iterator[NetChanges]:
        """The net change of the last key."""
        found, self._open = self._open, None
        if found is None:
            return
        operation = NET[int(PRESENT_BEFORE[found.first]), int(PRESENT_AFTER[found.last])]
        if operation == 0:
            return
        self._check_insert_complete(operation == INSERT and bool(found.unsent), found.key, found.seqno)
        unsent = found.unsent if operation == UPDATE else frozenset()
        yield NetChanges(
            operations=np.array([operation], dtype=np.uint8),
            values=found.values,
            seqnos=np.array([found.seqno], dtype=np.int64),
            unsent=bitmaps([unsent], self._width) if unsent else None,
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
            values, chosen, composed = compose(codes, values, unsent, starts, lasts, carried)

        self._open = OpenKey(
            key=keys[len(keys) - 1].as_py(),
            first=int(firsts[-1]),
            last=int(codes[lasts[-1]]),
            seqno=int(seqnos[-1]),
            values=values.take(pa.array(chosen[-1:])),
            unsent=composed.get(len(lasts) - 1, frozenset()),
        )
        operations = NET[PRESENT_BEFORE[firsts[:-1]].astype(np.intp), PRESENT_AFTER[codes[lasts[:-1]]].astype(np.intp)]
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
            unsent=bitmaps(maps, self._width) if maps is not None else None,
        )

    def _check_rows(self, rows: pa.RecordBatch, codes: Codes, values: pa.StringArray) -> None:
        if not IS_ROW[codes].all():
            place = int(np.flatnonzero(~IS_ROW[codes])[0])
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
            previous, following = numbers_of(rows.column("previous_seqno")), numbers_of(rows.column("next_seqno"))
            linked = same & (previous[1:] == before) & (following[:-1] == after) & (before != after)
            linked &= before != NO_SEQNO
            wrong = linked & (PRESENT_AFTER[codes[:-1]] != PRESENT_BEFORE[codes[1:]])
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


def _pick(values: pa.StringArray, chosen: Numbers) -> pa.StringArray:
    """The chosen rows; without a copy when they are neighbours."""
    first, last = int(chosen[0]), int(chosen[-1])
    if last - first + 1 == len(chosen) and (len(chosen) == 1 or (np.diff(chosen) == 1).all()):
        return values.slice(first, len(chosen))
    return values.take(pa.array(chosen))

"""Folding changes of one table into the rows that they leave, in memory that does not grow with their number.

Changes are held up to a number of bytes. Beyond that those are dropped that no row depends on any more; what is still
too much is spilled to disk by hashes of keys, and each part is folded by itself. The parts of a key change whose new
row lacks values, which are those of the old key's row, stay together (`Moves`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.compact.files.lineage import Identity
from airflow_parallel_apply.pipeline.compact.files.reading import hash_of
from airflow_parallel_apply.pipeline.encode.columns.rows import READ
from airflow_parallel_apply.pipeline.errors import EncodeError

_BEGINNINGS: Final = pa.array(["insert", READ])
"""Operations with which a row begins; the initial copy has read it."""

_PARTS: Final = 64
_BITS: Final = 6
_DEPTH: Final = 10
"""A hash has so many times `_BITS`."""


@dataclass(slots=True)
class Moves:
    """Keys whose rows took values along from a former key: each leads to another one of its group, or to itself.

    Memory: the keys of such changes since the last snapshot.
    """

    _to: dict[str, str] = field(default_factory=dict)

    def add(self, old: str, new: str) -> None:
        self._to[self.root(new)] = self.root(old)

    def root(self, key: str) -> str:
        self._to.setdefault(key, key)
        while self._to[key] != key:
            self._to[key] = self._to[self._to[key]]
            key = self._to[key]
        return key

    def having(self, keys: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.bool_]:
        """A mask of the keys that are among them."""
        if not self._to:
            return np.zeros(len(keys), dtype=np.bool_)
        return np.asarray(pc.is_in(keys, pa.array(list(self._to), pa.string())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Folds the rows of `RowReader`. `table`, `columns`: names, for people. `required`: places of columns that these
    changes have to tell; what else they do not, those under the next key may.
    """

    table: str
    columns: tuple[str, ...]
    identity: Identity
    moves: Moves
    memory_bytes: int
    directory: Path
    required: Collection[int]

    def folded(self, batches: Iterable[pa.RecordBatch], depth: int = 0) -> Iterator[pa.Table]:
        """The rows that are left, those of a key once. Errors: `EncodeError` for a row whose beginning the changes do
        not have, and for a value that they do not tell.
        """
        held: list[pa.RecordBatch] = []
        size = 0
        rest = iter(batches)
        for batch in rest:
            held.append(batch)
            size += batch.nbytes
            if size > self.memory_bytes and depth < _DEPTH:
                if self.identity is Identity.NONE:
                    yield self._known(pa.Table.from_batches(held).combine_chunks(), {})
                    held, size = [], 0
                    continue
                needed = self._needed(pa.Table.from_batches(held))
                if needed.nbytes > self.memory_bytes // 2:
                    yield from self._in_parts(chain(needed.to_batches(), rest), depth)
                    return
                held, size = needed.to_batches(), needed.nbytes
        if held:
            rows = pa.Table.from_batches(held).combine_chunks()
            match self.identity:
                case Identity.KEY:
                    yield self._by_key(rows)
                case Identity.IMAGE:
                    yield self._by_image(rows)
                case Identity.NONE:
                    yield self._known(rows, {})

    def _in_parts(self, batches: Iterable[pa.RecordBatch], depth: int) -> Iterator[pa.Table]:
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            paths = [Path(directory, str(part)) for part in range(_PARTS)]
            schema: pa.Schema | None = None
            with ExitStack() as files:
                writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
                for batch in batches:
                    schema = batch.schema
                    parts = self._part(batch, depth)
                    for part in np.unique(parts).tolist():
                        if part not in writers:
                            options = pa.ipc.IpcWriteOptions(compression="lz4")
                            writers[part] = files.enter_context(
                                pa.ipc.new_stream(str(paths[part]), schema, options=options)
                            )
                        writers[part].write_batch(batch.filter(pa.array(parts == part)))
            for path in paths:
                if path.exists():
                    with pa.ipc.open_stream(str(path)) as opened:
                        yield from self.folded(opened, depth + 1)
                    path.unlink()

    def _part(self, batch: pa.RecordBatch, depth: int) -> npt.NDArray[np.int64]:
        hashes = batch.column("hash").to_numpy().copy()
        for row in np.flatnonzero(self.moves.having(batch.column("key"))).tolist():
            hashes[row] = hash_of(self.moves.root(batch.column("key")[row].as_py()))
        found: npt.NDArray[np.int64] = ((hashes >> np.uint64(_BITS * depth)) & np.uint64(_PARTS - 1)).astype(np.int64)
        return found

    def _needed(self, rows: pa.Table) -> pa.Table:
        """Without changes between the first and the last one of a key, where the last one tells everything."""
        if self.identity is not Identity.KEY:
            return rows.combine_chunks()
        rows, first, last = self._sorted(rows)
        kept = first | last | self.moves.having(rows.column("key"))
        lacking = pc.is_valid(rows.column("unknown")).to_numpy()
        if lacking.any():
            groups = np.cumsum(first)
            kept |= np.isin(groups, np.unique(groups[lacking]))
        return rows.filter(pa.array(kept)).combine_chunks()

    @staticmethod
    def _sorted(rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """By key, and of a key as they came; which rows are a key's first one and which its last one."""
        codes = rows.column("key").combine_chunks().dictionary_encode().indices.to_numpy()
        order = np.lexsort((rows.column("fragno").to_numpy(), rows.column("seqno").to_numpy(), codes))
        codes = codes[order]
        changes = np.concatenate(([True], codes[1:] != codes[:-1], [True]))
        return rows.take(pa.array(order)).combine_chunks(), changes[:-1], changes[1:]

    def _by_key(self, rows: pa.Table) -> pa.Table:
        rows, first, last = self._sorted(rows)
        operations = rows.column("operation").combine_chunks()
        inserts = np.asarray(pc.is_in(operations, _BEGINNINGS))
        if not inserts[first].all():
            row = int(np.flatnonzero(first & ~inserts)[0])
            raise EncodeError(
                f"the feed changes a row of {self.table} that it never inserted: "
                f"{_shown(rows.column('key')[row].as_py())}",
                op="compact",
                table=self.table,
                seqno=rows.column("seqno")[row].as_py(),
                hint="It begins behind that row, as after start=equal. Such a feed tells no whole table.",
            )
        deletes = np.asarray(pc.equal(operations, "delete"))
        live = np.flatnonzero(last & ~deletes)
        sources = self._sources(rows, first)
        return self._known(rows.take(pa.array(live)), {place: source[live] for place, source in sources.items()}, rows)

    def _by_image(self, rows: pa.Table) -> pa.Table:
        """Keep as many of equal rows as were inserted more often than deleted."""
        keys = rows.column("key").to_pylist()
        deleted = np.asarray(pc.equal(rows.column("operation"), "delete").combine_chunks())
        counts: Counter[str] = Counter()
        for key, is_deleted in zip(keys, deleted.tolist(), strict=True):
            counts[key] += -1 if is_deleted else 1
        kept = []
        for row in range(len(keys) - 1, -1, -1):
            if counts[keys[row]] > 0 and not deleted[row]:
                counts[keys[row]] -= 1
                kept.append(row)
        if any(counts.values()):
            raise EncodeError(
                f"the feed deletes rows of {self.table} that it never inserted",
                op="compact",
                table=self.table,
                hint="It begins behind them, as after start=equal. Such a feed tells no whole table.",
            )
        return self._known(rows.take(pa.array(kept[::-1], pa.int64())), {})

    def _sources(self, rows: pa.Table, first: npt.NDArray[np.bool_]) -> dict[int, npt.NDArray[np.int64]]:
        """The row that has the value of each row, by columns that some row does not tell; -1: none has it."""
        marks = rows.column("unknown").combine_chunks()
        if marks.null_count == len(marks):
            return {}
        places = np.arange(len(marks))
        starts = np.maximum.accumulate(np.where(first, places, 0))
        coded = marks.dictionary_encode()
        codes = np.asarray(coded.indices.fill_null(-1))
        dictionary = coded.dictionary.to_pylist()
        found: dict[int, npt.NDArray[np.int64]] = {}
        for place in range(len(self.columns)):
            if any(mark[place] != "0" for mark in dictionary):
                not_sent = [code for code, mark in enumerate(dictionary) if mark[place] == "1"]
                source = np.where(np.isin(codes, not_sent), -1, places)
                upto = np.maximum.accumulate(source)
                found[place] = np.where(upto >= starts, upto, -1)
        self._follow_moves(rows, found, codes, dictionary)
        for place, source in found.items():
            # A row that has its value from one that does not tell it has none.
            untold = [code for code, mark in enumerate(dictionary) if mark[place] == "2"]
            source[(source >= 0) & np.isin(codes[source], untold)] = -1
        return found

    def _follow_moves(
        self, rows: pa.Table, sources: dict[int, npt.NDArray[np.int64]], codes: npt.NDArray[np.int64], marks: list[str]
    ) -> None:
        """The same for rows whose key, or a former one, took values along: change by change."""
        moved = np.flatnonzero(self.moves.having(rows.column("key")))
        if not len(moved):
            return
        part = rows.select(["operation", "seqno", "fragno", "key", "old_key"]).take(pa.array(moved))
        order = np.lexsort((part.column("fragno").to_numpy(), part.column("seqno").to_numpy()))
        operations, keys, old_keys = (part.column(name).to_pylist() for name in ("operation", "key", "old_key"))
        last: dict[str, int] = {}
        for number in order.tolist():
            row = int(moved[number])
            before = last.get(keys[number] if old_keys[number] is None else old_keys[number])
            for place, source in sources.items():
                if codes[row] >= 0 and marks[codes[row]][place] == "1":
                    source[row] = -1 if before is None else source[before]
                else:
                    source[row] = row
            if operations[number] != "delete":
                last[keys[number]] = row

    def _known(
        self, found: pa.Table, sources: dict[int, npt.NDArray[np.int64]], rows: pa.Table | None = None
    ) -> pa.Table:
        """Rows with the values that others tell, and marks of those that none does. Errors: `EncodeError` for one that
        is required.
        """
        if rows is None:
            marks = found.column("unknown").drop_null().unique().to_pylist()
            lacking = {place for mark in marks for place, one in enumerate(mark) if one != "0"}
            sources = {place: self._own(found, place) for place in lacking}
            rows = found
        untold: dict[int, npt.NDArray[np.bool_]] = {}
        for place, source in sources.items():
            if (source < 0).any():
                if place in self.required:
                    raise self._untold(found, place, int(np.flatnonzero(source < 0)[0]))
                untold[place] = source < 0
            found = found.set_column(place, str(place), rows.column(place).take(pa.array(np.maximum(source, 0))))
        return found.set_column(found.schema.get_field_index("unknown"), "unknown", self._marks(len(found), untold))

    def _untold(self, found: pa.Table, place: int, row: int) -> EncodeError:
        return EncodeError(
            f"the feed does not tell what {self.table}.{self.columns[place]} holds in "
            f"{_shown(found.column('key')[row].as_py())}",
            op="compact",
            table=self.table,
            column=self.columns[place],
            seqno=found.column("seqno")[row].as_py(),
            hint="The column was changed or added since, and the log does not say what older rows hold. Update "
            "these rows at the source, so that they are sent, and compact again.",
        )

    def _marks(self, count: int, untold: Mapping[int, npt.NDArray[np.bool_]]) -> pa.Array:
        """`unknown` of rows that lack these values, by columns."""
        if not untold:
            return pa.nulls(count, pa.string())
        marks = np.full((count, len(self.columns)), "0")
        for place, are_lost in untold.items():
            marks[are_lost, place] = "2"
        return pa.array(["".join(mark) if "2" in mark else None for mark in marks.tolist()], pa.string())

    @staticmethod
    def _own(rows: pa.Table, place: int) -> npt.NDArray[np.int64]:
        marks = rows.column("unknown").to_pylist()
        return np.array([-1 if mark is not None and mark[place] != "0" else row for row, mark in enumerate(marks)])


def _shown(key: str) -> str:
    return "(" + ", ".join(part[1:] if part.startswith("+") else "NULL" for part in key.split("\0")) + ")"

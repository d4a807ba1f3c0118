"""Reading a feed's files as rows of the newest definition of their table, with what tells rows apart beside them.

| column | |
|---|---|
| `0`, `1`, … | the values of the newest definition's columns, by their places |
| `operation`, `seqno`, `fragno`, `commit_time` | as in the file |
| `unknown` | a `1` for each column whose value this row does not tell, and `0` for the others; null: it tells all |
| `key`, `old_key` | texts that are equal where keys are; null of a truncate |
| `hash` | of the key |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from airflow_parallel_apply.pipeline.compact.files.lineage import Identity, Stage
from airflow_parallel_apply.pipeline.encode.columns.parse import Unfit, parse
from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.decode import decoded
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.files.schemas import FileSchemas
from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.target.older_rows import Origin, fill_text

_SEPARATOR: Final = "\0"
_BATCH_ROWS: Final = 65_536
_FETCHERS: Final = 8
"""Files that are fetched at a time."""


class FileContents:
    """Reads files, each several times. A feed of small commits is many small files: they are fetched side by side, and
    kept, up to `kept_bytes`.
    """

    def __init__(self, place: FilePlace, schemas: FileSchemas, *, kept_bytes: int) -> None:
        self._place = place
        self._schemas = schemas
        self._kept_bytes = kept_bytes
        self._kept: dict[str, bytes] = {}

    def keep(self, files: Iterable[DataFile]) -> None:
        """Fetch those that fit, the first ones, in place of what was kept before. Errors: as of `batches`."""
        fitting, size = [], 0
        for file in files:
            size += file.bytes_
            if size > self._kept_bytes:
                break
            fitting.append(file)
        with ThreadPoolExecutor(_FETCHERS) as pool:
            self._kept = dict(zip((file.path for file in fitting), pool.map(self._content, fitting), strict=True))

    def batches(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, as they are there. Errors: `EncodeError` where it is not what its manifest says."""
        content = self._kept.get(file.path)
        content = self._content(file) if content is None else content
        return decoded(file.path, content, self._schemas.of(file), batch_rows=_BATCH_ROWS)

    def _content(self, file: DataFile) -> bytes:
        content = self._place.read(file.path)
        if xxhash.xxh3_128_hexdigest(content) != file.checksum:
            raise EncodeError(
                f"{self._place.url(file.path)} is not as it was written",
                op="compact",
                hint="Restore the file from a copy.",
            )
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads the rows of one stage of a table. `typing`: of the newest definition."""

    typing: RowTyping
    stage: Stage

    @property
    def schema(self) -> pa.Schema:
        """See above."""
        width = len(self.typing.columns)
        return pa.schema(
            [
                *(pa.field(str(place), self.typing.schema.field(place).type) for place in range(width)),
                pa.field("operation", pa.string()),
                pa.field("seqno", pa.int64()),
                pa.field("fragno", pa.int64()),
                pa.field("commit_time", pa.timestamp("us", tz="UTC")),
                pa.field("unknown", pa.string()),
                pa.field("key", pa.string()),
                pa.field("old_key", pa.string()),
                pa.field("hash", pa.uint64()),
            ]
        )

    def batch(self, read: pa.RecordBatch, relation_id: int) -> pa.RecordBatch:
        """Rows of a definition's file. Errors: `EncodeError` for a value that the newest definition cannot hold."""
        origin = self.stage.origins[relation_id]
        values = [self._value(read, origin, place) for place in range(len(self.typing.columns))]
        operation, seqno, fragno, commit_time, _, old_key = read.columns[len(origin.relation.columns) :]
        return self.rows(values, [operation, seqno, fragno, commit_time], self._unknown(read, origin), old_key)

    def rows(
        self, values: Sequence[pa.Array], change: Sequence[pa.Array], unknown: pa.Array, old_key: pa.Array
    ) -> pa.RecordBatch:
        """With keys and hashes."""
        keys = self._keys(values, change[0])
        former = self._old_keys(old_key, keys)
        hashes = [0 if key is None else hash_of(key) for key in keys.to_pylist()]
        return pa.RecordBatch.from_arrays(
            [*values, *change, unknown, keys, former, pa.array(hashes, pa.uint64())], schema=self.schema
        )

    def _value(self, read: pa.RecordBatch, origin: Origin, place: int) -> pa.Array:
        wanted = self.typing.schema.field(place).type
        column = self.typing.columns[place].column
        at = origin.places[place]
        if at is None:
            found: pa.Array = pa.array(np.full(read.num_rows, fill_text(origin.fills[place])), pa.string())
        else:
            found = read.column(at)
            if found.type == wanted:
                return found
            if not pa.types.is_string(found.type) and not pa.types.is_string(wanted):
                return found.cast(wanted)
            found = texts(found).cast(pa.string())
        if self.typing.columns[place].is_text:
            return found
        try:
            return parse(found, column.value).cast(wanted)
        except Unfit as error:
            raise EncodeError(
                f"a value that {column.name} cannot hold as {wanted}",
                op="compact",
                table=self.typing.table,
                column=column.name,
                seqno=read.column(len(origin.relation.columns) + 1)[error.row].as_py(),
                values=repr(error.text),
                hint="Keep the source's text of it: the option text of the target's address.",
            ) from error

    def _unknown(self, read: pa.RecordBatch, origin: Origin) -> pa.Array:
        """Marks of values that were not sent (1), and of those that nothing tells (2), since this definition has no
        column for them, or they are longer than the column takes since.
        """
        never = [origin.is_unknown(place) for place in range(len(origin.places))]
        names = [None if at is None else origin.relation.columns[at].name for at in origin.places]

        def marks(mark: str | None) -> str | None:
            not_sent = json.loads(mark) if mark else []
            found = ["2" if lost else str(int(name in not_sent)) for lost, name in zip(never, names, strict=True)]
            return "".join(found) if any(one != "0" for one in found) else None

        coded = read.column(len(origin.relation.columns) + 4).dictionary_encode(null_encoding="encode")
        found = pa.array([marks(mark) for mark in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)
        for place, (at, most) in enumerate(zip(origin.places, origin.letters, strict=True)):
            if at is not None and most is not None:
                found = _marked(found, place, len(names), pc.greater(pc.utf8_length(texts(read.column(at))), most))
        return found

    def _keys(self, values: Sequence[pa.Array], operation: pa.Array) -> pa.Array:
        match self.stage.identity:
            case Identity.KEY:
                found = _joined([texts(values[place]) for place in self.stage.key])
            case Identity.IMAGE if values:
                found = _joined([texts(value) for value in values])
            case _:
                found = pa.array([""] * len(operation), pa.string())
        return pc.if_else(pc.equal(operation, "truncate"), pa.scalar(None, pa.string()), found)

    def _old_keys(self, old_key: pa.Array, keys: pa.Array) -> pa.Array:
        """An old key comes as the log has it: of floats the text may be another one than that of the typed value."""
        if old_key.null_count == len(old_key) or self.stage.identity is not Identity.KEY:
            return pa.nulls(len(keys), pa.string())
        found: list[str | None] = []
        for text in old_key.to_pylist():
            if text is None:
                found.append(None)
                continue
            parts = [
                texts(parse(pa.array([value], pa.string()), self.typing.columns[place].column.value))
                if not self.typing.columns[place].is_text
                else pa.array([value], pa.string())
                for value, place in zip(values_of(text), self.stage.key, strict=True)
            ]
            found.append(_joined(parts)[0].as_py())
        return pa.array(found, pa.string())


def hash_of(key: str) -> int:
    """The number by which the rows of a key are spread."""
    return xxhash.xxh3_64_intdigest(key.encode())


def _marked(marks: pa.Array, place: int, width: int, are_lost: pa.Array) -> pa.Array:
    """Marks with those of lost values in one column."""
    rows = np.flatnonzero(np.asarray(pc.fill_null(are_lost, False)))
    if not len(rows):
        return marks
    found = marks.to_pylist()
    for row in rows.tolist():
        mark = found[row] or "0" * width
        found[row] = f"{mark[:place]}2{mark[place + 1 :]}"
    return pa.array(found, pa.string())


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    """`+` and a value, or `-` for none, behind one another."""
    marked = (pc.fill_null(pc.binary_join_element_wise("+", part.cast(pa.string()), ""), "-") for part in parts)
    return pc.binary_join_element_wise(*marked, _SEPARATOR)

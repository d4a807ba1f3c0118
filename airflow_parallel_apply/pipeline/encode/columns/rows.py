"""Rows of a log as typed rows: what an encoder takes.

Behind the relation's columns stand those that say what became of the row; a table that has a column of such a name
gets them with one more `_` in front:

| column | meaning |
|---|---|
| `_operation` | insert, update, delete, truncate. A change of a key is a delete and an insert of the same seqno |
| `_seqno`, `_fragno` | the transaction, and the change's number in it |
| `_commit_time` | when the transaction committed at the source |
| `_unsent` | JSON list of the columns whose values were not sent: those of the old row stay; null where there is none |
| `_old_key` | of the insert that is half of a key's change, the old key's texts, as the log has them; else null |

A delete has the key's values (all, where rows are told apart by all their values), a truncate has none. A row that was
there before the log, and that the initial copy brought in, is a `read` instead of an insert.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.parse import Unfit, parse
from airflow_parallel_apply.pipeline.encode.columns.types import ColumnTyping, typings
from airflow_parallel_apply.pipeline.errors import EncodeError, LogError
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import NULL, SEPARATOR, line_widths, lists

_WORDS: Final = {
    Operation.INSERT: "insert",
    Operation.UPDATE: "update",
    Operation.DELETE: "delete",
    Operation.KEY_ARRIVED: "insert",
    Operation.KEY_LEFT: "delete",
    Operation.TRUNCATE: "truncate",
}
READ: Final = "read"
"""Instead of insert, for the rows of the initial copy."""

_LETTERS: Final = pa.array([operation.value for operation in _WORDS])
_NAMES: Final = pa.array(list(_WORDS.values()))

CHANGE: Final = pa.schema(
    [
        pa.field("_operation", pa.string(), nullable=False),
        pa.field("_seqno", pa.int64(), nullable=False),
        pa.field("_fragno", pa.int64(), nullable=False),
        pa.field("_commit_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("_unsent", pa.string()),
        pa.field("_old_key", pa.string()),
    ]
)
"""The columns behind those of the relation, as they are called where nothing else is called so."""


class UnfitColumns(EncodeError):
    """Columns with values that their types cannot hold. `columns`: their names."""

    def __init__(self, table: str, found: Mapping[str, tuple[int, str]]) -> None:
        column, (seqno, text) = next(iter(found.items()))
        super().__init__(
            f"{len(found)} columns have values that their types cannot hold",
            op="encode",
            table=table,
            column=column,
            seqno=seqno,
            values=repr(text),
            hint="Keep them as text.",
        )
        self.columns = tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTyping:
    """The schema of one relation's typed rows, and how they come about. Build it with `row_typing`."""

    name: tuple[str, str]
    """The table's schema and its own name."""
    columns: tuple[ColumnTyping, ...]
    schema: pa.Schema
    key: tuple[str, ...] = ()
    """Names of the columns by which rows are told apart; none where that is by all values or by nothing."""

    @property
    def table(self) -> str:
        """`schema.table`, unquoted."""
        return ".".join(self.name)

    @property
    def change_names(self) -> tuple[str, ...]:
        """The names of the columns of `CHANGE` here, in their order."""
        return tuple(self.schema.names[len(self.columns) :])

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns that keep the source's text."""
        return tuple(typing.column.name for typing in self.columns if typing.is_text)


def row_typing(relation: Relation, kept_as_text: Collection[str] = ()) -> RowTyping:
    """The typing of a relation's rows. `kept_as_text`: names of columns that keep their text."""
    columns = typings(relation, kept_as_text)
    names = {typing.column.name for typing in columns}
    underscores = ""
    while not names.isdisjoint({underscores + name for name in CHANGE.names}):
        underscores += "_"
    behind = [field.with_name(underscores + field.name) for field in CHANGE]
    return RowTyping(
        name=(relation.schema, relation.table),
        columns=columns,
        schema=pa.schema([*(typing.field for typing in columns), *behind]),
        key=relation.key_names,
    )


def typed_rows(
    rows: pa.RecordBatch, typing: RowTyping, commit_times: pa.Array, *, copied_through: int = NO_SEQNO
) -> pa.RecordBatch:
    """Rows of `log.schema.ROWS` of one relation, typed. `commit_times`: one for each row. `copied_through`: the last
    seqno of the initial copy.

    Errors: `UnfitColumns`; `LogError` for a row that has not as many values as the relation has columns.
    """
    operations = rows.column("operation")
    unsent = rows.column("unsent")
    values = rows.column("values")
    truncates = pc.equal(operations, Operation.TRUNCATE.value)
    if pc.any(truncates).as_py():
        values = pc.if_else(truncates, SEPARATOR.join([NULL] * len(typing.columns)), values)
    columns = typed_values(values, rows.column("seqno"), typing.columns, typing.table)
    return pa.RecordBatch.from_arrays(
        [
            *columns,
            _words(operations, rows.column("seqno"), copied_through),
            rows.column("seqno"),
            rows.column("fragno"),
            commit_times,
            _unsent_names(unsent, typing),
            rows.column("old_key"),
        ],
        schema=typing.schema,
    )


def typed_values(
    lines: pa.StringArray, seqnos: pa.Array, columns: Sequence[ColumnTyping], table: str
) -> list[pa.Array]:
    """The values of a relation's lines, by column. `seqnos`: of each line. Errors: as `typed_rows`."""
    found: list[pa.Array] = []
    unfit: dict[str, tuple[int, str]] = {}
    for texts, column in zip(_texts(lines, seqnos, len(columns), table), columns, strict=True):
        try:
            found.append(texts if column.is_text else parse(texts, column.column.value))
        except Unfit as error:
            unfit[column.column.name] = seqnos[error.row].as_py(), str(error.text)
    if unfit:
        raise UnfitColumns(table, unfit)
    return found


def _words(operations: pa.StringArray, seqnos: pa.Array, copied_through: int) -> pa.StringArray:
    words = _NAMES.take(pc.index_in(operations, _LETTERS))
    if copied_through == NO_SEQNO:
        return words
    return pc.if_else(pc.less_equal(seqnos, copied_through), READ, words)


def _texts(lines: pa.StringArray, seqnos: pa.Array, width: int, table: str) -> list[pa.StringArray]:
    """The texts of each column."""
    if width == 0:
        return []
    if not pc.all(pc.equal(line_widths(lines), width)).as_py() and len(lines):
        raise LogError(f"a row that has not {width} values", seqno=seqnos[0].as_py(), table=table, hint="Report it.")
    flat = lists(lines).flatten()
    return [flat.take(pa.array(np.arange(column, len(flat), width))) for column in range(width)]


def _unsent_names(unsent: pa.StringArray, typing: RowTyping) -> pa.StringArray:
    """Few different marks come in many rows."""
    if unsent.null_count == len(unsent):
        return pa.nulls(len(unsent), pa.string())
    coded = unsent.dictionary_encode()
    names = [
        json.dumps(
            [one.column.name for one, mark in zip(typing.columns, marks.as_py(), strict=True) if mark == "1"],
            ensure_ascii=False,
        )
        for marks in coded.dictionary
    ]
    return pa.array(names, pa.string()).take(coded.indices)

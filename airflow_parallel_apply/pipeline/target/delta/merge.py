"""Merging staged net changes into a Delta table, in one commit that is refused as a whole where a change does not fit.

A merge of delta-rs says how many rows it changed when it is committed. So what must not be is an expression that fails
while rows are written: an update or a deletion whose key is not there, an insertion whose key is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.target.delta.columns import OPERATION, SEQNO, UNSENT, bare
from airflow_parallel_apply.pipeline.target.delta.images import quoted
from airflow_parallel_apply.pipeline.target.delta.tables import conditionally, schema_of, table_errors

_MISSING: Final = "parallel_apply missing"
_PRESENT: Final = "parallel_apply present"
_REFUSED: Final = re.compile(rf"({_MISSING}|{_PRESENT}) (\d+) (.*?)' to value of", re.DOTALL)
_MORE_THAN_ONE: Final = "matched a target row with multiple source rows"


def append(table: DeltaTable, relation: Relation, staged: pa.Table, transactions: Mapping[str, int]) -> None:
    """Append staged insertions, of which the table has none, or which have no key."""
    schema = schema_of(table)
    # Columns that the source has not are null: delta-rs takes no rows that lack one.
    rows = pa.table(
        [
            staged.column(field.name) if field.name in staged.column_names else pa.nulls(len(staged), field.type)
            for field in schema
        ],
        names=schema.names,
    )
    with table_errors("commit", table=relation.name):
        write_deltalake(table, rows, mode="append", commit_properties=conditionally(transactions))


def append_changes(table: DeltaTable, relation: Relation, staged: pa.Table, transactions: Mapping[str, int]) -> None:
    """Append staged changes to a feed; columns that are new are added, and null in its earlier rows."""
    rows = staged.cast(bare(staged.schema))
    with table_errors("commit", table=relation.name):
        write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=conditionally(transactions))


def merge(
    table: DeltaTable, relation: Relation, staged: pa.Table, transactions: Mapping[str, int], *, has_unsent: bool
) -> None:
    """Merge staged net changes of distinct keys. Errors: `Outrun`, `Unavailable`; `TargetError` that names the key of a
    change that does not fit, and then nothing was changed.
    """
    keys = relation.key_names
    others = [column.name for column in relation.columns if not column.key]
    first, shown = keys[0], [staged.schema.field(key) for key in keys]
    merging = table.merge(
        staged,
        " AND ".join(_same(key) for key in shown),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        commit_properties=conditionally(transactions),
    )
    merging = merging.when_matched_delete(predicate=_is(Operation.DELETE))
    merging = merging.when_matched_update(
        updates={
            **{quoted(name): _sent(relation, name) if has_unsent else f"s.{quoted(name)}" for name in others},
            quoted(first): _only(Operation.UPDATE, _PRESENT, shown),
        }
    )
    merging = merging.when_not_matched_insert(
        updates={
            **{quoted(name): f"s.{quoted(name)}" for name in (*keys, *others)},
            quoted(first): _only(Operation.INSERT, _MISSING, shown),
        }
    )
    try:
        with table_errors("commit", table=relation.name):
            _execute(merging)
    except _RefusedMerge as refused:
        raise _error(relation, str(refused)) from refused.__cause__


class _RefusedMerge(Exception):  # travels inside this module
    """The merge met a change that does not fit, or a key of several rows."""


def _execute(merging: object) -> None:
    try:
        merging.execute()  # type: ignore[attr-defined]
    except DeltaError as error:
        text = str(error)
        if _REFUSED.search(text) or _MORE_THAN_ONE in text:
            raise _RefusedMerge(text) from error
        raise


def _error(relation: Relation, text: str) -> TargetError:
    found = _REFUSED.search(text)
    if found is None:
        return TargetError(
            "the table has several rows of one key",
            op="commit",
            table=relation.name,
            hint="Somebody else wrote them; remove all but one, and clear the task open.",
        )
    word, seqno, key = found.groups()
    what = "is not in the table" if word == _MISSING else "is in the table already"
    return TargetError(
        f"key {key}: the row that the change needs {'to find' if word == _MISSING else 'to insert'} {what}",
        op="commit",
        table=relation.name,
        seqno=int(seqno),
        hint="Somebody else wrote the table. Compare it with the source, correct it, and clear the task open.",
    )


def _same(key: pa.Field) -> str:
    """The condition that a key column has one value. Statistics of decimals are rounded to floats, and delta-rs passes
    over files by them, with the row in it: so decimals are compared as texts, which nothing is known of.
    """
    name = quoted(key.name)
    if pa.types.is_decimal(key.type):
        return f"CAST(s.{name} AS VARCHAR) = CAST(t.{name} AS VARCHAR)"
    return f"s.{name} = t.{name}"


def _is(operation: Operation) -> str:
    return f"s.{quoted(OPERATION)} = '{operation.value}'"


def _only(operation: Operation, refusal: str, keys: list[pa.Field]) -> str:
    """The staged value of the first key column where the row's change is such an operation. Else it is a cast of a text
    that is no number, which fails, and says the text.
    """
    shown = ", '\t', ".join(_shown(key) for key in keys)
    text = f"concat('{refusal} ', s.{quoted(SEQNO)}, ' ', {shown})"
    value = f"s.{quoted(keys[0].name)}"
    return f"CASE WHEN {_is(operation)} THEN {value} ELSE CASE WHEN CAST({text} AS INT) = 0 THEN {value} END END"


def _shown(key: pa.Field) -> str:
    """Its text; of bytes their digits, since they may be no text."""
    name = f"s.{quoted(key.name)}"
    return f"encode({name}, 'hex')" if pa.types.is_binary(key.type) else name


def _sent(relation: Relation, name: str) -> str:
    """The staged value of a column, or where it was not sent, the one that the row has."""
    place = [column.name for column in relation.columns].index(name) + 1
    column = quoted(name)
    return f"CASE WHEN substr(s.{quoted(UNSENT)}, {place}, 1) = '1' THEN t.{column} ELSE s.{column} END"

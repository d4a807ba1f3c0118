"""The columns of a Delta table for a relation of the source, and what a relation has that none can hold exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, row_typing
from airflow_parallel_apply.pipeline.encode.columns.types import ColumnTyping, typings
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL, Lake

OPERATION: Final = "__operation"
SEQNO: Final = "__seqno"
UNSENT: Final = "__unsent"
STAGED: Final = (OPERATION, SEQNO, UNSENT)
"""Names of staged columns behind those of the table; reserved there."""

_AHEAD: Final = (
    "These rows have that column. If it was renamed in the lake before they were applied, give it this name back; add "
    "only one that never was there. Then clear the task open."
)
_EXACT_KEYS: Final = {KeyKind.INTEGER, KeyKind.TEXT, KeyKind.UUID, KeyKind.TIME, KeyKind.EXACT}
"""Kinds whose keys are equal if and only if their texts are."""


def column_typings(relation: Relation) -> tuple[ColumnTyping, ...]:
    """How each column is kept. Delta has no time of the day: that is text, as what has no Arrow type is."""
    times = {column.name for column in relation.columns if column.value.kind is ValueKind.TIME}
    return typings(relation, times)


def table_schema(relation: Relation) -> pa.Schema:
    """The columns of its Delta table. All but the key may be null: a source may drop NOT NULL."""
    return pa.schema(
        [
            pa.field(typing.column.name, pa.string() if typing.type is None else typing.type)
            for typing in column_typings(relation)
        ]
    )


def feed_typing(relation: Relation) -> RowTyping:
    """The typing of every change of a table, with what became of the row behind its columns."""
    return row_typing(relation, [one.column.name for one in column_typings(relation) if one.is_text])


def lake_schema(lake: Lake, relation: Relation) -> pa.Schema:
    """The columns of its table in a lake of current rows, or of changes."""
    return bare(feed_typing(relation).schema) if lake.is_feed else table_schema(relation)


def bare(schema: pa.Schema) -> pa.Schema:
    """Columns without the source's names of their types: another one may have the same type here, and delta-rs appends
    no column that says otherwise of itself than the table's.
    """
    return pa.schema([field.remove_metadata() for field in schema])


def require_feed(relation: Relation, found: pa.Schema) -> None:
    """Raise `TargetError` for a table that cannot take the changes of a relation. Columns that it lacks are added."""
    typing = feed_typing(relation)
    letters = {name.lower(): name for name in found.names}
    is_feed = set(typing.change_names) <= set(found.names)
    for field in typing.schema:
        place, other = found.get_field_index(field.name), letters.get(field.name.lower())
        if place < 0 and other is not None:
            what = f"would have a column {field.name}, which readers take for {other}"
        elif place < 0 and field.name in typing.change_names:
            what = f"has no column {field.name}"
        elif place >= 0 and found.field(place).type != field.type:
            if is_feed and field.name not in typing.change_names:
                raise _retyped(relation, field, found.field(place))
            what = f"has a column {field.name} of another type"
        else:
            continue
        raise TargetError(
            f"{relation.name} is no feed of the source's changes: it {what}",
            op="commit",
            table=relation.name,
            column=field.name,
            hint="If the pipeline has not fed it so far, move the table away, and clear the task open. "
            f"{START_ELSEWHERE}",
        )


def _retyped(relation: Relation, field: pa.Field, here: pa.Field) -> TargetError:
    return TargetError(
        f"column {field.name} of {relation.name} is {here.type} in the lake, and the source's values are {field.type} "
        "now: no append gives a column another type",
        op="commit",
        table=relation.name,
        column=field.name,
        hint=f"Rewrite the lake's table with this column as {field.type}, each value cast, and all else as it is; then "
        f"run again. {START_ELSEWHERE}",
    )


def feed_findings(relation: Relation) -> Iterator[Finding]:
    """Find what of a relation no feed keeps, and what is kept as text."""
    yield from _general_findings(relation)


def relation_findings(relation: Relation) -> Iterator[Finding]:
    """Find what of a relation no Delta table follows exactly, and what is kept as text."""
    name = relation.name
    for column in relation.columns:
        if column.key and not _is_exact_key(column):
            yield _finding(
                name,
                f"key column {column.name} of {name} is of type {column.type_name}, whose equal values may have "
                "different forms, which a Delta table does not find",
                column=column.name,
                note="Give it another replica identity, or exclude the table.",
            )
    reserved = {column.name for column in relation.columns}.intersection(STAGED)
    if reserved:
        yield _finding(name, f"{name} has a column {min(reserved)}, a name that staging needs", column=min(reserved))
    yield from _general_findings(relation)


def _general_findings(relation: Relation) -> Iterator[Finding]:
    name = relation.name
    if relation.schema == CONTROL:
        yield _finding(name, f"{name} would lie in {CONTROL}, where pipelines keep their positions")
    if not relation.columns:
        yield _finding(name, f"{name} has no columns, and a Delta table needs one", note="Exclude it.")
    lowered = [column.name.lower() for column in relation.columns]
    if len(set(lowered)) < len(lowered):
        yield _finding(name, f"{name} has columns whose names differ in their case only, which Delta Lake takes as one")
    texts = [one for one in column_typings(relation) if one.is_text]
    if texts:
        listed = ", ".join(f"{one.column.name} ({one.column.type_name})" for one in texts)
        yield _finding(name, f"{name} keeps the source's text of {listed}", severity=Severity.WARNING)


def table_findings(relation: Relation, found: pa.Schema | None) -> Iterator[Finding]:
    """Compare a table with what the relation needs. `found`: None where there is none."""
    name = relation.name
    if found is None:
        return
    for field in table_schema(relation):
        place = found.get_field_index(field.name)
        if place < 0:
            yield _finding(name, f"{name} lacks column {field.name} ({field.type})", column=field.name)
        elif found.field(place).type != field.type:
            yield _finding(
                name,
                f"column {field.name} of {name} is {found.field(place).type}, and the source's values are {field.type}",
                column=field.name,
            )
    for field in found:
        if field.name in relation.unsent_computed:
            yield _finding(
                name,
                f"{name} has a column {field.name}, which the source computes and does not send: later rows would have "
                "nothing there",
                column=field.name,
                note="Drop it from the lake's table.",
            )
        elif field.name not in table_schema(relation).names and not field.nullable:
            yield _finding(name, f"column {field.name} of {name}, which the source has not, takes no nulls")


def require_fit(relation: Relation, found: pa.Schema, *, adds_columns: bool = False) -> None:
    """Raise `TargetError` for a table that cannot take the relation's rows. `adds_columns`: first it gets those that it
    lacks.
    """
    for finding in table_findings(relation, found):
        if adds_columns and finding.column is not None and finding.column not in found.names:
            continue
        raise TargetError(
            finding.what,
            op="commit",
            table=relation.name,
            column=finding.column,
            hint="Bring the table's columns to the source's, and clear the task open."
            if finding.column in found.names
            else _AHEAD,
        )


def _is_exact_key(column: Column) -> bool:
    is_typed = column.value.kind in (ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.BOOLEAN)
    return column.kind in _EXACT_KEYS or is_typed


def _finding(
    table: str, what: str, *, column: str | None = None, severity: Severity = Severity.ERROR, note: str = ""
) -> Finding:
    return Finding(severity=severity, side=Side.TARGET, where=table, what=what, is_table=True, column=column, note=note)

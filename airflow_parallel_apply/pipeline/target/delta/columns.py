"""The columns of a Delta table for a relation of the source, and what a relation has that none can hold exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.columns.types import ColumnTyping, typings
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind

OPERATION: Final = "__operation"
SEQNO: Final = "__seqno"
UNSENT: Final = "__unsent"
STAGED: Final = (OPERATION, SEQNO, UNSENT)
"""Names of staged columns behind those of the table; reserved there."""

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
    if relation.by_image:
        yield _finding(
            name,
            f"{name} has no key: which of its equal rows an update or delete means, no merge of a Delta table can say",
            note="Give it a key, or exclude it.",
        )
    lowered = [column.name.lower() for column in relation.columns]
    if len(set(lowered)) < len(lowered):
        yield _finding(name, f"{name} has columns whose names differ in their case only, which Delta Lake takes as one")
    reserved = {column.name for column in relation.columns}.intersection(STAGED)
    if reserved:
        yield _finding(name, f"{name} has a column {min(reserved)}, a name that staging needs", column=min(reserved))
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
        if field.name not in table_schema(relation).names and not field.nullable:
            yield _finding(name, f"column {field.name} of {name}, which the source has not, takes no nulls")


def require_fit(relation: Relation, found: pa.Schema) -> None:
    """Raise `TargetError` for a table that cannot take the relation's rows."""
    for finding in table_findings(relation, found):
        raise TargetError(
            finding.what,
            op="commit",
            table=relation.name,
            column=finding.column,
            hint="Bring the table's columns to the source's, and clear the task open.",
        )


def _is_exact_key(column: Column) -> bool:
    is_typed = column.value.kind in (ValueKind.INTEGER, ValueKind.DECIMAL, ValueKind.BOOLEAN)
    return column.kind in _EXACT_KEYS or is_typed


def _finding(
    table: str, what: str, *, column: str | None = None, severity: Severity = Severity.ERROR, note: str = ""
) -> Finding:
    return Finding(severity=severity, side=Side.TARGET, where=table, what=what, is_table=True, column=column, note=note)

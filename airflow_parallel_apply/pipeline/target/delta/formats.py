"""Finds features of a table that delta-rs neither refuses nor follows: readers would find other rows there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation

_MAPPING: Final = "delta.columnMapping.mode"
_EXPRESSION: Final = "delta.generationExpression"


def format_troubles(table: DeltaTable) -> Iterator[tuple[str, str]]:
    """Each as the rest of a sentence about the table, and what to do."""
    mode = table.metadata().configuration.get(_MAPPING, "none")
    if mode != "none":
        # delta-rs (1.6) commits to it, and writes the columns under names that other readers do not look for.
        yield (
            f"maps columns ({_MAPPING}={mode}), which delta-rs does not follow where it writes",
            "Make the table anew from its rows, without the mapping; then drop the pipeline, and begin anew with "
            "start=equal.",
        )
    for field in table.schema().fields:
        if _EXPRESSION in field.metadata:
            yield (
                f"computes its column {field.name}, as delta-rs does not where it appends",
                f"Drop the column {field.name} of the lake's table.",
            )


def require_format(table: DeltaTable, relation: Relation) -> None:
    """Raise `TargetError` for a table that delta-rs would not write rightly."""
    for trouble, hint in format_troubles(table):
        raise TargetError(f"{relation.name} {trouble}", op="commit", table=relation.name, hint=hint)

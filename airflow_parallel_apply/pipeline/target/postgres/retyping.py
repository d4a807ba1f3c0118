"""The statement that gives a column of the target the source's type."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.fit import is_cast_by_text
from airflow_parallel_apply.postgres.quoting import quoted


def retyping(relation: Relation, index: int, stored: str) -> str:
    """It keeps every text that the column prints now, which of most types a cast does not. `stored`: its type."""
    column = relation.columns[index]
    name = quoted(column.name)
    value = f"{name}::{column.type_name}"
    if not is_cast_by_text(stored, column.type_name):
        value = f"CASE num_nulls({name}) WHEN 0 THEN concat({name})::{column.type_name} END"
    table = quoted(relation.schema, relation.table)
    return f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {column.type_name} USING {value}"

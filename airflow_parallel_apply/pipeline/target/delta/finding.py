"""Rows that a Delta table has under some keys, as the log's texts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.encode.columns.parse import parse
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.delta.columns import column_typings
from airflow_parallel_apply.pipeline.target.delta.replay import Key, Values
from airflow_parallel_apply.pipeline.target.delta.tables import table_errors


def find_rows(table: DeltaTable, relation: Relation, keys: Sequence[Key]) -> dict[Key, Values]:
    """The values of those that are there, in the order of the relation's columns. Errors: `Unavailable`."""
    typings = column_typings(relation)
    places = relation.key_indexes
    wanted = pc.scalar(True)
    for number, place in enumerate(places):
        column = pa.array([key[number] for key in keys], pa.string())
        values = column if typings[place].is_text else parse(column, typings[place].column.value)
        # More than those that are wanted, where keys have several columns.
        wanted &= pc.field(typings[place].column.name).isin(values)
    with table_errors("commit", table=relation.name):
        found = table.to_pyarrow_dataset().to_table(filter=wanted, columns=[one.column.name for one in typings])
    columns = [texts(column.combine_chunks()).to_pylist() for column in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return {tuple(row[place] for place in places): row for row in rows}

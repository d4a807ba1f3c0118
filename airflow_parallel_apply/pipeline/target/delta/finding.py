"""Rows that a Delta table has under some keys, as the log's texts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.encode.columns.parse import parse
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.columns.types import ColumnTyping
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.delta.columns import column_typings
from airflow_parallel_apply.pipeline.target.delta.images import row_images
from airflow_parallel_apply.pipeline.target.delta.replay import Key, Values
from airflow_parallel_apply.pipeline.target.delta.tables import read_columns


def find_rows(table: DeltaTable, relation: Relation, keys: Sequence[Key]) -> dict[Key, Values]:
    """The values of those that are there, in the order of the relation's columns. Errors: `Unavailable`."""
    typings = column_typings(relation)
    places = relation.key_indexes
    images = _images(keys, [typings[place] for place in places])
    rows: list[Values] = []
    for batch in read_columns(table, relation.name, [one.column.name for one in typings]):
        wanted = batch.filter(pc.is_in(row_images([batch.column(place) for place in places]), value_set=images))
        if wanted.num_rows:
            rows += map(list, zip(*(texts(column).to_pylist() for column in wanted.columns), strict=True))
    return {tuple(row[place] for place in places): row for row in rows}


def _images(keys: Sequence[Key], typings: Sequence[ColumnTyping]) -> pa.Array:
    columns = [pa.array([key[number] for key in keys], pa.string()) for number in range(len(typings))]
    return row_images(
        [
            column if typing.is_text else parse(column, typing.column.value)
            for column, typing in zip(columns, typings, strict=True)
        ]
    )

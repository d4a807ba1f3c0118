"""Images of rows: one text for all values of a row, which two rows have if and only if they are the same, bit by bit.

Each value is its length, a colon, and its text; a null is a hyphen. So `-0.0` is not `0.0`, and NaN is NaN: what tells
rows of a multiset apart is what their source sent, not what an engine calls equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.texts import texts

_NULL: Final = "-"


def row_images(columns: Sequence[pa.Array]) -> pa.LargeStringArray:
    """The image of each row, for a comparison in memory."""
    kind = pa.large_string()
    values = [texts(column).cast(kind) for column in columns]
    parts = [
        pc.fill_null(pc.binary_join_element_wise(pc.binary_length(one).cast(kind), one, pa.scalar(":", kind)), _NULL)
        for one in values
    ]
    return pc.binary_join_element_wise(*parts, pa.scalar("", kind))


def images_of(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """The images of a table's rows in some columns."""
    batches: Iterable[pa.RecordBatch] = rows.select(list(names)).to_batches()
    return pa.chunked_array([row_images(batch.columns) for batch in batches], pa.large_string())


def image_expression(schema: pa.Schema, alias: str) -> str:
    """The same in the SQL of delta-rs, whose texts of a value may be others: only for rows that it compares itself."""
    return f"concat({', '.join(_part(field, alias) for field in schema)}, '')"


def _part(field: pa.Field, alias: str) -> str:
    column = f"{alias}.{quoted(field.name)}"
    text = f"encode({column}, 'hex')" if pa.types.is_binary(field.type) else f"CAST({column} AS VARCHAR)"
    return (
        f"CASE WHEN {column} IS NULL THEN '{_NULL}' ELSE concat(CAST(octet_length({text}) AS VARCHAR), ':', {text}) END"
    )


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'

"""Rows as JSON objects, by columns."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.json.values import json_values


def objects(batch: pa.RecordBatch) -> pa.StringArray:
    """One object a row, its members in the order of columns."""
    return members(batch.schema.names, [json_values(column) for column in batch.columns], batch.num_rows)


def members(names: Sequence[str], values: Sequence[pa.StringArray | pa.Scalar], count: int) -> pa.StringArray:
    """Objects of members whose values are JSON texts already."""
    if not names:
        return pa.array(["{}"] * count, pa.string())
    parts: list[pa.StringArray | pa.Scalar | str] = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        parts += [("," if place else "{") + json.dumps(name, ensure_ascii=False) + ":", value]
    return pc.binary_join_element_wise(*parts, "}", "")

"""Records as Avro writes them, without a header: a row's fields one behind the other."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.avro.fields import field_parts


def records(batch: pa.RecordBatch, *, prefix: bytes = b"") -> pa.BinaryArray:
    """The bytes of each row, behind a prefix that all have."""
    parts: list[pa.BinaryArray | pa.Scalar] = [pa.scalar(prefix)] if prefix else []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        parts += field_parts(column, nullable=field.nullable)
    if not parts:
        return pa.array([b""] * batch.num_rows, pa.binary())
    return pc.binary_join_element_wise(*parts, b"") if len(parts) > 1 else parts[0]

"""The columns of files, as manifests tell them."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.files.manifest import TableSchema


def schema_of(typing: RowTyping, relation_id: int) -> TableSchema:
    """The schema of files whose rows have this typing."""
    return TableSchema(
        table=typing.table,
        relation_id=relation_id,
        columns=tuple((field.name, str(field.type)) for field in typing.schema),
        texts=typing.texts,
    )

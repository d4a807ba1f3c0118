"""The columns of files, as manifests tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest, TableSchema
from airflow_parallel_apply.pipeline.errors import EncodeError

_DECIMAL: Final = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TYPES: Final = {
    str(kind): kind
    for kind in (
        pa.bool_(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.time64("us"),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
    )
}
_TELLING: Final = (".parquet", ".arrow", ".avro")
"""Endings of files that tell their types themselves."""


def schema_of(typing: RowTyping, relation_id: int) -> TableSchema:
    """The schema of files whose rows have this typing."""
    return TableSchema(
        table=typing.table,
        relation_id=relation_id,
        columns=tuple((field.name, str(field.type)) for field in typing.schema),
        texts=typing.texts,
        key=typing.key,
    )


class FileSchemas:
    """The schemas of the files that manifests name."""

    def __init__(self, manifests: Iterable[FileManifest]) -> None:
        self._found: dict[tuple[str, int], list[TableSchema]] = {}
        self._keys: dict[tuple[str, int], tuple[str, ...]] = {}
        for manifest in manifests:
            for table in manifest.tables:
                known = self._found.setdefault((table.table, table.relation_id), [])
                if all((table.columns, table.texts) != (one.columns, one.texts) for one in known):
                    known.append(table)
                if table.key is not None:
                    self._keys[table.table, table.relation_id] = table.key

    def key_of(self, file: DataFile) -> tuple[str, ...] | None:
        """See `TableSchema.key`."""
        return self._keys.get((file.table, file.relation_id))

    def of(self, file: DataFile) -> pa.Schema:
        """Errors: `EncodeError` where it is not told which of several the file has, and the file does not say it."""
        found = self._found[file.table, file.relation_id]
        if len(found) > 1 and not file.path.endswith(_TELLING):
            first, second = (set(one.texts) for one in found[:2])
            raise EncodeError(
                f"files of {file.table} have {min(first ^ second)} as the source's text, and as typed values: which of "
                "them has what, this format does not say",
                op="read",
                table=file.table,
                hint="Feed another directory from its start, with the option text; or one of Parquet, Arrow or Avro.",
            )
        return pa.schema([(name, _type(kind)) for name, kind in found[0].columns])


def _type(text: str) -> pa.DataType:
    """Inverse of `str`."""
    decimal = _DECIMAL.fullmatch(text)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _TYPES[text]

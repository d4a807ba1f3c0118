"""CSV with a header line: `CsvEncoder`. Null is nothing, an empty text is `""`; the text of a value is the source's."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.csv as pa_csv

from airflow_parallel_apply.pipeline.encode.columns.parse import has_not_finite
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.pieces import PIECE_ROWS, pieces


class CsvEncoder:
    """Implements `Encoder`, by pyarrow's writer, which quotes texts and nothing else."""

    suffix = ".csv"
    is_joinable = True

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names

    def head(self) -> bytes:
        return _written(pa.table({name: pa.array([], pa.string()) for name in self._names}), has_header=True)

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for part in pieces(batches):
            columns = [texts(column) if _is_written_otherwise(column) else column for column in part.columns]
            yield _written(pa.Table.from_arrays(columns, names=self._names), has_header=False)

    def tail(self) -> bytes:
        return b""


def _is_written_otherwise(column: pa.Array) -> bool:
    """True if pyarrow's own text of a value is not the source's, or none that readers know."""
    if pa.types.is_floating(column.type):
        return has_not_finite(column)
    return bool(pa.types.is_binary(column.type) or pa.types.is_decimal(column.type))


def _written(rows: pa.Table, *, has_header: bool) -> bytes:
    file = io.BytesIO()
    pa_csv.write_csv(rows, file, pa_csv.WriteOptions(include_header=has_header, batch_size=PIECE_ROWS))
    return file.getvalue()

"""JSON lines: `JsonEncoder` writes each row as a flat object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.json.rows import objects
from airflow_parallel_apply.pipeline.encode.pieces import joined, pieces


class JsonEncoder:
    """Implements `Encoder` and `MessageEncoder`. `row_texts`: the JSON text of each row."""

    suffix = ".jsonl"
    is_joinable = True

    def __init__(self, row_texts: Callable[[pa.RecordBatch], pa.StringArray] = objects) -> None:
        self._row_texts = row_texts

    def head(self) -> bytes:
        return b""

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for part in pieces(batches):
            lines = pc.binary_join_element_wise(self._row_texts(part), "\n", "")
            yield joined(lines)  # type: ignore[misc]  # bytes that nobody copies

    def tail(self) -> bytes:
        return b""

    def messages(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        return self._row_texts(batch).cast(pa.binary())

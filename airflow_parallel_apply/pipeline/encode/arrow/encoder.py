"""Arrow files: `ArrowEncoder`. Each range is a file of its own, since a footer knows all batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


class ArrowEncoder:
    """Implements `Encoder`, by pyarrow's writer. A file is in memory until it is whole."""

    suffix = ".arrow"
    is_joinable = False

    def __init__(self, schema: pa.Schema, *, codec: str | None = "lz4") -> None:
        self._schema = schema
        # Work side by side is the pool's: Arrow's own threads would take the cores of its other workers.
        self._options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)

    def head(self) -> bytes:
        return b""

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self._schema, options=self._options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        yield memoryview(sink.getvalue())  # type: ignore[misc]  # bytes that nobody copies

    def tail(self) -> bytes:
        return b""

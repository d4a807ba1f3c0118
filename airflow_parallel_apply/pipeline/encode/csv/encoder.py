r"""CSV with a header line: `CsvEncoder`.

Texts are in quotes, everything else is bare: so null, which is nothing, is told from an empty text, which is `""`.
Booleans are `true` and `false`, instants end with `Z`, bytes are `\x` and hexadecimal digits; other values have the
source's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.pieces import joined, pieces
from airflow_parallel_apply.pipeline.errors import EncodeError

_QUOTE = '"'


class CsvEncoder:
    """Implements `Encoder`, by columns."""

    suffix = ".csv"
    is_joinable = True

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names

    def head(self) -> bytes:
        return (",".join(_quoted(name) for name in self._names) + "\n").encode()

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for part in pieces(batches):
            if part.num_columns == 1 and part.column(0).null_count:
                raise EncodeError(
                    "a null in the only column would be an empty line, which readers of CSV pass over",
                    op="encode",
                    column=self._names[0],
                    hint="Take another format, or another column beside it.",
                )
            line = pc.binary_join_element_wise(*(_cells(column) for column in part.columns), ",")
            lines = pc.binary_join_element_wise(line, "\n", "")
            yield joined(lines)  # type: ignore[misc]  # bytes that nobody copies

    def tail(self) -> bytes:
        return b""


def _cells(column: pa.Array) -> pa.StringArray:
    """The text of each value as it stands in a line; of null nothing."""
    kind = column.type
    if pa.types.is_string(kind):
        found = pc.binary_join_element_wise(_QUOTE, pc.replace_substring(column, _QUOTE, _QUOTE * 2), _QUOTE, "")
    elif pa.types.is_boolean(kind):
        found = pc.if_else(column, "true", "false")
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        moments = column.cast(pa.int64()).cast(pa.timestamp("us"))
        found = pc.binary_join_element_wise(texts(moments), "Z", "")
    else:
        found = texts(column)
    return pc.fill_null(found, "") if found.null_count else found


def _quoted(name: str) -> str:
    return _QUOTE + name.replace(_QUOTE, _QUOTE * 2) + _QUOTE

"""A side of a comparison between two kinds: checksums of the source's texts of typed values, computed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable
from airflow_parallel_apply.pipeline.encode.columns.texts import texts

_SEPARATOR: Final = "\0"
"""No text of a source has it."""


class TypedSide:
    """Implements `ComparedSide` over rows. It keeps none of them."""

    def __init__(self, rows: ComparedRows) -> None:
        self.name = rows.name
        self._rows = rows

    def tables(self) -> list[SourceTable]:
        return self._rows.tables()

    def having(self, table: SourceTable) -> SourceTable:
        return self._rows.having(table)

    def checksum(self, table: SourceTable) -> tuple[int, int]:
        count = total = 0
        for batch in self._rows.batches(table):
            digests = _digests(_lines(batch.columns))
            count, total = count + len(digests), total + sum(digests)
        return count, total

    def buckets(self, table: SourceTable, buckets: int) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for batch in self._rows.batches(table):
            for key, digest in zip(_digests(_keys(batch, table)), _digests(_lines(batch.columns)), strict=True):
                count, total = found.get(key % buckets, (0, 0))
                found[key % buckets] = (count + 1, total + digest)
        return found

    def rows(self, table: SourceTable, buckets: int, wanted: list[int]) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for batch in self._rows.batches(table):
            keys = _keys(batch, table)
            for key, hashed, digest in zip(
                keys.to_pylist(), _digests(keys), _digests(_lines(batch.columns)), strict=True
            ):
                if hashed % buckets in wanted:
                    found[f"({key[1:].replace(f'{_SEPARATOR}+', ',')})", f"{digest:016x}"] += 1
        return found

    def cancel(self) -> None:
        self._rows.cancel()


def _keys(batch: pa.RecordBatch, table: SourceTable) -> pa.StringArray:
    return _lines([batch.column(name) for name in table.key or table.columns])


def _lines(columns: Sequence[pa.Array]) -> pa.StringArray:
    """The texts of each row as one: `+` and a value, or `-` for none."""
    marked: Iterator[pa.StringArray] = (
        pc.fill_null(pc.binary_join_element_wise("+", texts(column).cast(pa.string()), ""), "-") for column in columns
    )
    return pc.binary_join_element_wise(*marked, _SEPARATOR)


def _digests(lines: pa.StringArray) -> list[int]:
    return [xxhash.xxh3_64_intdigest(line) for line in lines.cast(pa.binary()).to_pylist()]

"""Reports the progress of one table's copy while its rows pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.copy.postgres.record import TEXT_PER_BYTE
from airflow_parallel_apply.pipeline.copy.protocol import RecopyProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """Tells of a table's rows on their way. `before`, `size`, `of`: bytes at the source: done, this one's, all."""

    report: Callable[[RecopyProgress], None]
    table: str
    before: int
    size: int
    of: int

    def passed_on(self, pieces: Iterator[tuple[int, bytes | memoryview]]) -> Iterator[tuple[int, bytes | memoryview]]:
        """The same pieces."""
        rows = text_bytes = 0
        for count, text in pieces:
            yield count, text
            rows += count
            text_bytes += len(text)
            done = self.before + min(int(text_bytes / TEXT_PER_BYTE), self.size)
            fraction = done / self.of if self.of else 1.0
            self.report(RecopyProgress(table=self.table, rows=rows, text_bytes=text_bytes, fraction=fraction))

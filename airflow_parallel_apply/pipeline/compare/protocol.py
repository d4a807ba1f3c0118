"""One side of a comparison, and what it answers about a table: `ComparedSide`.

Both sides have to agree on a row's checksum: that of the text of its values, in the order of the columns asked for. Two
databases of one kind compute it themselves; of two kinds each gives its rows (`ComparedRows`), and it is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.value_type import ValueType


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table as the source has it. `columns`: those that are compared. `generated`: those that the source computes,
    which are compared where the target has them, too. `key` None: compared as a multiset.
    """

    schema: str
    table: str
    columns: list[str]
    generated: list[str]
    key: list[str] | None
    values: Mapping[str, ValueType] = field(default_factory=dict)
    """The types of the columns' values, for a side of another kind."""

    @property
    def name(self) -> str:
        """For people, never for SQL."""
        return f"{self.schema}.{self.table}"

    def with_generated(self, names: Iterable[str]) -> SourceTable:
        """With some of its generated columns among those that are compared."""
        found = list(names)
        return replace(self, columns=[*self.columns, *found], generated=found)


class TableRefused(Exception):
    """A side lacks the table, or a column of it, or forbids to read it; as text: its own words."""


class ComparedSide(Protocol):
    """Not thread-safe. Errors: `Unavailable`, `ConfigurationError`, `TargetError`."""

    name: str
    """The side's name in messages."""

    def tables(self) -> list[SourceTable]:
        """All ordinary tables, by name."""
        ...

    def having(self, table: SourceTable) -> SourceTable:
        """With those of its generated columns that this side has."""
        ...

    def checksum(self, table: SourceTable) -> tuple[int, int]:
        """Number of rows, and the sum of their checksums. Errors: also `TableRefused`."""
        ...

    def buckets(self, table: SourceTable, buckets: int) -> dict[int, tuple[int, int]]:
        """Count and sum of each bucket of keys that has rows."""
        ...

    def rows(self, table: SourceTable, buckets: int, wanted: list[int]) -> Counter[tuple[str, str]]:
        """Count how often each (key text, checksum) occurs in some of the buckets."""
        ...

    def cancel(self) -> None:
        """End the query under way with an error; called from another thread. Without a query, nothing happens."""
        ...


class ComparedRows(Protocol):
    """One side as rows, where the other one is of another kind. Not thread-safe. Errors: as of `ComparedSide`."""

    name: str
    """The side's name in messages."""

    def tables(self) -> list[SourceTable]:
        """As of `ComparedSide`; asked of the source alone."""
        ...

    def having(self, table: SourceTable) -> SourceTable:
        """With those of its generated columns that this side has."""
        ...

    def batches(self, table: SourceTable) -> Iterator[pa.RecordBatch]:
        """All rows of a table, in any order: its `columns`, in their order, each typed as `encode.columns.types` says,
        or as the source's text. A float of the source is typed: its text may be written in several ways. Errors: also
        `TableRefused`.
        """
        ...

    def cancel(self) -> None:
        """End what is being read with an error; called from another thread."""
        ...

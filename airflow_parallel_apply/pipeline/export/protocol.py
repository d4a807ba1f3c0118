"""The protocols of an export: what is exported comes in portions, and a place takes all of them at once, or none.

::

    range of a log ─┐                        ┌─▶ files: the next manifest names them
                    ├─▶ portions ─▶ attempt ─┤
    query ──────────┘                        └─▶ topics: one transaction, with a record of what they have
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping
from airflow_parallel_apply.pipeline.encode.progress import Progress
from airflow_parallel_apply.pipeline.export.report import ExportReport
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.log.mark import Mark
from airflow_parallel_apply.pipeline.model.change import Relation

QUERIES: Final = "queries"
"""The origin of a place that has results of queries."""


class Portion(Protocol):
    """Rows of one table, as many as are split and encoded together."""

    @property
    def relation(self) -> Relation: ...

    @property
    def rows(self) -> pa.Table: ...

    @property
    def commit_times(self) -> CommitTimes | None:
        """When changes were committed; None where the rows are no changes."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of `rows` by which they are split where their order does not matter; none: by their places."""
        ...

    def typing(self, texts: Collection[str]) -> RowTyping:
        """How its rows leave. `texts`: columns of the table that keep the source's text."""
        ...

    def typed(self, batch: pa.RecordBatch, typing: RowTyping) -> pa.RecordBatch:
        """Some of the rows, typed. Errors: `UnfitColumns`."""
        ...

    def seqnos(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """The first and the last transaction of some of the rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The contents of a place. `origin`: the log whose changes it has, or `QUERIES`. `position`: the last seqno.
    `texts`: columns, as schema.table.column, that keep the source's text from now on. `mark`: of the last transaction;
    None where an older version of the software kept none.
    """

    origin: str
    format: str
    position: int
    texts: tuple[str, ...] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An addition to a place. `portions` takes a function that is told how many rows
    are passed over. `server`, `database`: whose rows they are. `export_id`: of a query. `mark`: of a log's last
    transaction, looked up before its rows are read.
    """

    first_seqno: int | None
    last_seqno: int | None
    total_rows: int | None
    server: str
    database: str
    export_id: str
    mark: Mark | None
    portions: Callable[[Callable[[int], None]], Iterator[Portion]]


class Attempt(Protocol):
    """One attempt at adding to a place. What it writes nobody reads before `commit`."""

    @property
    def held(self) -> Held | None:
        """The place's contents; None before the first commit. Read once, when the attempt begins."""
        ...

    def has(self, export_id: str) -> bool:
        """True if a query's export of this id is there."""
        ...

    def write(self, stretch: Stretch, texts: Collection[str], progress: Progress) -> None:
        """Encode and write all portions. Errors: `UnfitColumns`, perhaps among others of workers side by side."""
        ...

    def commit(self, stretch: Stretch, held: Held) -> ExportReport | None:
        """Make what was written appear, once; None where somebody else has added to the place meanwhile."""
        ...

    def nothing(self, export_id: str) -> ExportReport:
        """The report of an export that has nothing to add."""
        ...


class Place(Protocol):
    """Where exports go. Errors: `Unavailable`, `EncodeError`, `ConfigurationError`."""

    @property
    def url(self) -> str:
        """The place's name for people, without secrets."""
        ...

    @property
    def format(self) -> str:
        """The form of what is written."""
        ...

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns, as schema.table.column, that keep the source's text, as the place's own address says."""
        ...

    def attempt(self) -> AbstractContextManager[Attempt]:
        """Begin. What was written and not committed is taken back at its end."""
        ...

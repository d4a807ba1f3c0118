"""Compare the tables of source and target by counts and content checksums that both servers compute themselves, where
they are of one kind.

A row's checksum is that of the text of its values in the source's column order, under equal session settings, with
those of generated columns that both sides have; a
table's is the sum over its rows, so neither the order of rows nor that of the target's columns matters, and duplicates
count. Where a table differs, checksums by bucket of the key narrow down to the rows.
The two sides are not frozen together: what is written during the comparison may show as a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock, local
from typing import Any, Final, Self

from airflow_parallel_apply.pipeline.compare.open import open_side
from airflow_parallel_apply.pipeline.compare.protocol import ComparedSide, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError

_ROWS_PER_BUCKET: Final = 1000
_MAX_BUCKETS: Final = 65_536
_BUCKETS_LOOKED_INTO: Final = 4
_SHOWN_DIFFERENCES: Final = 5
_CHECKSUM_BITS: Final = 64
_CANCEL_SECONDS: Final = 0.2
"""Between two attempts: a thread may just have had an answer, and be about to ask for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key (of a table without one, a whole row) whose rows differ. Counts of rows that have this key."""

    key: str
    source_rows: int
    target_rows: int

    def __str__(self) -> str:
        if self.target_rows == 0:
            return f"{self.key} is missing in the target"
        if self.source_rows == 0:
            return f"{self.key} is in the target only"
        if self.source_rows != self.target_rows:
            return f"{self.key}: {self.source_rows} rows in the source, {self.target_rows} in the target"
        return f"{self.key} has other values in the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """One table. Counts and checksums are None on a side that could not be read; `problem` then says why."""

    name: str
    source_rows: int | None
    target_rows: int | None
    source_checksum: str | None
    target_checksum: str | None
    differences: tuple[Difference, ...] = ()
    """The first few, by key text within the buckets looked into."""
    problem: str | None = None

    @property
    def equal(self) -> bool:
        """Same number of rows with the same contents."""
        return (
            self.problem is None
            and self.source_rows == self.target_rows
            and self.source_checksum == self.target_checksum
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All followed tables, by name."""

    tables: tuple[TableComparison, ...]

    @property
    def equal(self) -> bool:
        """True if there are tables, and all of them are equal."""
        return bool(self.tables) and all(table.equal for table in self.tables)


def compare(
    source: Endpoint,
    target: Endpoint,
    tables: TablePatterns,
    *,
    jobs: int = 4,
    begun: Callable[[str, int], None] | None = None,
    progress: Callable[[TableComparison], None] | None = None,
) -> Comparison:
    """Compare the source's tables that the patterns name, `jobs` at a time. `begun` hears of each table, by name,
    before it is read, and how many there are; `progress` of its result; both from its thread.

    Errors: `Unavailable`, `ConfigurationError`. A table that one side lacks or forbids is a result, not an error. Cut
    off, by Ctrl-C too, it cancels what the servers still compute.
    """
    if jobs < 1:
        raise ConfigurationError(f"parameter jobs: {jobs} is not usable", hint="jobs takes 1 or more.")
    with open_side(source, "source", other=target) as side:
        found = [table for table in side.tables() if tables.matches(table.schema, table.table)]

    def one(table: SourceTable) -> TableComparison:
        left, right = pairs.mine()
        if begun is not None:
            begun(table.name, len(found))
        result = _compare_table(left, right, right.having(table))
        if progress is not None:
            progress(result)
        return result

    with (
        _Pairs(source, target) as pairs,
        ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="compare") as pool,
    ):
        asked = [pool.submit(one, table) for table in found]
        try:
            ended, _ = wait(asked, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
            return Comparison(tables=tuple(future.result() for future in asked))
        except BaseException:
            under_way = [future for future in asked if not future.cancel()]
            while wait(under_way, timeout=_CANCEL_SECONDS).not_done:
                pairs.cancel()
            raise


class _Pairs:
    """A session on either side for each thread that compares. Closes them all together."""

    def __init__(self, source: Endpoint, target: Endpoint) -> None:
        self._ends = source, target
        self._thread = local()
        self._opened: list[ComparedSide] = []
        self._lock = Lock()
        self._stack = ExitStack()

    def mine(self) -> tuple[ComparedSide, ComparedSide]:
        """Those of the calling thread, opened when it first asks. Errors: `Unavailable`, `ConfigurationError`."""
        if not hasattr(self._thread, "pair"):
            with self._lock:
                self._thread.pair = tuple(
                    self._stack.enter_context(open_side(end, name, other=other))
                    for end, other, name in zip(self._ends, reversed(self._ends), ("source", "target"), strict=True)
                )
            self._opened += self._thread.pair
        left, right = self._thread.pair
        return left, right

    def cancel(self) -> None:
        """Cancel the queries under way on all sides."""
        for side in tuple(self._opened):
            side.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _compare_table(source: ComparedSide, target: ComparedSide, table: SourceTable) -> TableComparison:
    sums: dict[str, tuple[int, int]] = {}
    problems = []
    # Both servers work at the same time; a session belongs to one thread at a time.
    with ThreadPoolExecutor(max_workers=1) as beside:
        started = beside.submit(target.checksum, table)
        for side in (source, target):
            try:
                sums[side.name] = started.result() if side is target else side.checksum(table)
            except TableRefused as refused:
                problems.append(f"{side.name}: {refused}")
    left, right = sums.get(source.name), sums.get(target.name)
    if right is not None:
        missing = (name for name in table.generated if name not in table.columns)
        problems += [f"{target.name}: the column {name}, which the source computes, is missing" for name in missing]
    differences: tuple[Difference, ...] = ()
    if left is not None and right is not None and left != right:
        differences = _differences(source, target, table, max(left[0], right[0]))
    return TableComparison(
        name=table.name,
        source_rows=left[0] if left else None,
        target_rows=right[0] if right else None,
        source_checksum=_shown(left),
        target_checksum=_shown(right),
        differences=differences,
        problem="; ".join(problems) or None,
    )


def _differences(
    source: ComparedSide, target: ComparedSide, table: SourceTable, row_count: int
) -> tuple[Difference, ...]:
    buckets = min(max(row_count // _ROWS_PER_BUCKET, 1), _MAX_BUCKETS)
    left, right = source.buckets(table, buckets), target.buckets(table, buckets)
    wanted = sorted(bucket for bucket in left.keys() | right.keys() if left.get(bucket) != right.get(bucket))
    wanted = wanted[:_BUCKETS_LOOKED_INTO]
    ours, theirs = source.rows(table, buckets, wanted), target.rows(table, buckets, wanted)
    keys = sorted({key for key, _ in (ours - theirs) | (theirs - ours)})[:_SHOWN_DIFFERENCES]
    return tuple(
        Difference(key=key, source_rows=_rows_of(ours, key), target_rows=_rows_of(theirs, key)) for key in keys
    )


def _rows_of(rows: Counter[tuple[str, str]], wanted: str) -> int:
    return sum(number for (key, _), number in rows.items() if key == wanted)


def _shown(summed: tuple[int, Any] | None) -> str | None:
    """The low bits are enough: an unequal sum that agrees in them is as unlikely as one that does not differ."""
    return None if summed is None else f"{int(summed[1]) % 2**_CHECKSUM_BITS:016x}"

"""Histories of one table as logs that are read from memory, and what the table holds after each transaction."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader, LogState
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.partition.key import buckets
from tests.support.in_memory.rows import LogRow, Rows, rows_of
from tests.support.written_log import Change, append, make_log

KEYS: Final = 8
_VALUES: Final = "abcde"
"""Fewer than keys: where they are unique, most are handed over from row to row."""


class CachedLog:
    """A log that nobody writes to any more: what was read once is kept."""

    def __init__(self, reader: LogReader) -> None:
        self._state = reader.state()
        self.identity = reader.identity
        self.root = reader.root
        self.transactions = lru_cache(reader.transactions)
        self._rows = lru_cache(lambda after, last, names, **options: tuple(reader.rows(after, last, **options)))
        self._reader = reader

    def state(self) -> LogState:
        return self._state

    def verify(self, segments: Sequence[object]) -> None:
        """Done when it was read."""

    def row_files(self, after_seqno: int, last_seqno: int) -> tuple[str, ...]:
        return self._reader.row_files(after_seqno, last_seqno)

    def rows(
        self, after_seqno: int, last_seqno: int, *, columns: Sequence[str] | None = None, **options: object
    ) -> Iterator[pa.RecordBatch]:
        names = None if columns is None else tuple(columns)
        return iter(self._rows(after_seqno, last_seqno, names, columns=names, **options))


@dataclass(frozen=True)
class History:
    """A log, and what it says. `rows`: those of its table, in order."""

    log: CachedLog
    transactions: tuple[tuple[Change, ...], ...]
    is_unique: bool
    """True if no two rows have one value after any of its transactions, so that the target may require it."""

    @property
    def last_seqno(self) -> int:
        return len(self.transactions) - 1

    @cached_property
    def rows(self) -> tuple[LogRow, ...]:
        return tuple(row for batch in self.log.rows(-1, self.last_seqno, in_order=True) for row in rows_of(batch))

    @cached_property
    def states(self) -> tuple[Rows, ...]:
        """The table's rows behind each transaction; the last entry, which -1 means: nothing."""
        found: list[Rows] = []
        rows: Rows = {}
        for changes in self.transactions:
            rows = _after(rows, changes)
            found.append(rows)
        return (*found, {})

    def rows_at(self, seqnos: Sequence[int]) -> Rows:
        """The rows of a target whose channels stand at these seqnos."""
        return {
            key: value
            for channel, seqno in enumerate(seqnos)
            for key, value in self.states[seqno].items()
            if bucket_of(key) * len(seqnos) // BUCKET_COUNT == channel
        }


@lru_cache
def bucket_of(key: int) -> int:
    return int(buckets("public.t", pa.array([str(key)]))[0])


def make_history(directory: Path, seed: int, *, transactions: int = 14) -> History:
    """Make a random history: small transactions that change a few keys, now and then a truncate."""
    choose = random.Random(seed)
    is_unique = choose.random() < 0.5
    rows: Rows = {}
    made: list[tuple[Change, ...]] = []
    for _ in range(transactions):
        changes = (Change("T"),) if choose.random() < 0.08 else _changes(choose, rows, is_unique=is_unique)
        made.append(changes)
        rows = _after(rows, changes)
    url = str(directory / f"log{seed}")
    make_log(url)
    append(url, 0, made)
    return History(CachedLog(open_reader(url)), tuple(made), is_unique)


def _changes(choose: random.Random, rows: Rows, *, is_unique: bool) -> tuple[Change, ...]:
    """Changes of one to three keys; tried again until the table's rows are as `is_unique` says, behind each of them."""
    while True:
        changes: list[Change] = []
        after = rows
        for key in choose.sample(range(KEYS), choose.randint(1, 3)):
            value = choose.choice((*_VALUES, None))
            operation = "I" if key not in rows else choose.choice("UUUD")
            changes.append(Change(operation, key, None if operation == "D" else value))
            after = _after(after, changes[-1:])
            values = [value for value in after.values() if value is not None]
            if is_unique and len(values) != len(set(values)):
                break
        else:
            return tuple(changes)


def _after(rows: Rows, changes: Sequence[Change]) -> Rows:
    after = dict(rows)
    for change in changes:
        if change.operation == "T":
            after.clear()
        elif change.operation == "D":
            del after[change.id]
        else:
            after[change.id] = change.v
    return after

"""Changes of a replay: what is to be sent, and what was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.merge.cascades import Reached
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import Written


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement on its way, and what to say if it finds no row."""

    cursor: psycopg.RawCursor[Any]
    operation: Operation
    relation: Relation
    seqno: int
    key: tuple[object, ...]
    may_be_done: bool
    """True if the target's own foreign keys may have done it (see `Cascades`)."""
    reinserts: bool
    """Deletes the row, and inserts it."""

    @property
    def written(self) -> Written:
        """The rows that it has written."""
        count = self.cursor.rowcount
        if self.reinserts:
            return Written(inserted=count, deleted=count)
        match self.operation:
            case Operation.INSERT:
                return Written(inserted=count)
            case Operation.DELETE:
                # If it finds no row, a foreign key has deleted the row.
                return Written(deleted=1 if self.may_be_done else count)
            case _:
                return Written(updated=count)


@dataclass(frozen=True, slots=True)
class Change:
    """One that is about to be sent. `old_key`: where the key changed."""

    table: TargetTable
    operation: Operation
    seqno: int
    values: Sequence[str | None]
    unsent: str
    old_key: Sequence[str | None] | None
    reached: Reached

    def texts(self, index: int) -> Iterator[str]:
        """The texts that it has for a column: its value, and the one that its key had."""
        if index < len(self.values) and self.unsent[index : index + 1] != "1":
            yield from (value for value in [self.values[index]] if value is not None)
        sent = self.table.relation.key_indexes or range(len(self.table.relation.columns))
        for place, old in zip(sent, self.old_key or (), strict=False):
            if place == index and old is not None:
                yield old

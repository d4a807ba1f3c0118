"""Decodes what a batch of `pgoutput` messages holds besides changes, begins and commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.source.postgres.wire.tuples import FollowedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A truncate or a logical message that the log keeps. `message`: which one of the batch."""

    message: int
    operation: Operation
    relation_ids: tuple[int, ...]
    texts: tuple[bytes, ...]


@dataclass(slots=True)
class Seldom:
    """`versions`: of each table, the messages from which on another definition holds. `redefined`: messages that bring
    one which differs from the log's.
    """

    statements: list[Statement] = field(default_factory=list)
    versions: dict[int, list[tuple[int, FollowedTable]]] = field(default_factory=dict)
    redefined: list[int] = field(default_factory=list)

    def hold_from(self, message: int, tables: Mapping[int, FollowedTable]) -> None:
        """From a message on, changes of these tables, by oid, are under these definitions."""
        for oid, table in tables.items():
            self.versions.setdefault(oid, []).append((message, table))

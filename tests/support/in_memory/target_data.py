"""The content of a target in memory: rows, positions, staging and branches, and what its one table takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import Conflict, StagingLost, TargetError
from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.model.position import Position
from tests.support.in_memory.branches import Branches
from tests.support.in_memory.rows import Net, Rows, rows_of

REFUSED: Final = "is refused by the target"
"""The message of the error of a poisoned key."""


@dataclass(frozen=True)
class Staged:
    """A staging table: whose it is, and its net changes by key."""

    channel: int | None
    token: str
    net: dict[int, Net]
    group: int | None = None


@dataclass
class TargetData:
    """The content of a target: the part that outlives its sessions. `unique`: whether no two rows may have one value.
    `poison`: keys whose changes are refused.
    """

    rows: Rows = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)
    routing_digest: str = ""
    log_id: str = ""
    generation: int = 0
    staging: dict[str, Staged] = field(default_factory=dict)
    unique: bool = False
    poison: set[int] = field(default_factory=set)
    sessions: set[Any] = field(default_factory=set)
    branches: Branches = field(default_factory=Branches)

    def copy(self) -> TargetData:
        """A backup: without sessions and staging."""
        return replace(
            self,
            rows=dict(self.rows),
            positions=list(self.positions),
            staging={},
            sessions=set(),
            branches=self.branches.copy(),
        )

    def restore(self, backup: TargetData) -> None:
        """Go back to a backup; every session ends."""
        self.rows, self.positions = dict(backup.rows), list(backup.positions)
        self.routing_digest, self.log_id = backup.routing_digest, backup.log_id
        self.generation = backup.generation
        self.staging = {}
        self.branches = backup.branches.copy()
        for session in self.sessions:
            session.end()

    def merge(self, rows: Rows, name: str) -> None:
        staged = self.staging.get(name)
        if staged is None:
            raise StagingLost("the staging is gone")
        self.merge_net(rows, staged.net)

    def merge_net(self, rows: Rows, net: Mapping[int, Net], *, is_prepared: bool = False) -> None:
        for key, found in net.items():
            self.require_row(rows, key, found.begins, is_prepared=is_prepared)
            rows.pop(key, None)
            if found.is_there:
                rows[key] = found.value

    def apply(self, rows: Rows, net: Mapping[int, Net]) -> None:
        self.merge_net(rows, net)
        self.require_unique(rows)

    def replay(self, rows: Rows, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            for row in rows_of(batch):
                self.require_row(rows, row.id, row.operation)
                if row.operation == Operation.DELETE:
                    del rows[row.id]
                else:
                    rows[row.id] = row.value
                self.require_unique(rows)

    def require_row(self, rows: Rows, key: int, operation: str, *, is_prepared: bool = False) -> None:
        """Nothing refuses any more what is prepared."""
        if key in self.poison and not is_prepared:
            raise TargetError(f"key {key} {REFUSED}", table="public.t")
        if (key in rows) is (operation == Operation.INSERT):
            raise AssertionError(f"{operation} of key {key}, which is {'there' if key in rows else 'not there'}")

    def require_unique(self, rows: Rows) -> None:
        values = [value for value in rows.values() if value is not None]
        if self.unique and len(values) != len(set(values)):
            raise Conflict("two rows have one value", table="public.t")

    def require_with_branches(self, rows: Rows, nets: Sequence[Mapping[int, Net]]) -> None:
        """Require what is prepared, and more, to go together."""
        rows = dict(rows)
        for net in (*(branch.net for branch in self.branches.prepared.values()), *nets):
            self.apply(rows, net)

    def finish(self, between: Callable[[], None] = lambda: None) -> None:
        """Commit what is recorded, and move the positions. `between`: called before each of these steps."""
        branches, series = self.branches, self.branches.series
        for name in () if series is None else series.names:
            between()
            if name in branches.prepared:
                self.merge_net(self.rows, branches.prepared.pop(name).net, is_prepared=True)
                self.require_unique(self.rows)
        between()
        if series is not None and branches.series == series:
            self.positions = [replace(at, seqno=series.last_seqno) for at in self.positions]
            branches.series = None

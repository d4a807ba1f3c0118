"""Staging of a unit's rows, relation by relation: reduced to net changes, counted, and kept within memory.

The part of a loader that no target does otherwise. What a target does with net changes is its own `RelationLoad`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.net_changes import DELETE, INSERT, UPDATE, NetChanges
from airflow_parallel_apply.pipeline.apply.reduce import Reducer
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable

_BUFFERED_BYTES: Final = 32 * 2**20
"""Bytes of all relations' net changes that are held together."""


class RelationLoad(ABC):
    """One relation's part of what an attempt stages, in the place `name`. Not thread-safe, used once.

    A target gives `flush`, `buffered_bytes` and `_keep`; it calls `_count` for what it stages.
    """

    def __init__(self, relation: Relation, name: str) -> None:
        self.name = name
        self._relation = relation
        self._reducer = Reducer(relation)
        self._counts = {INSERT: 0, UPDATE: 0, DELETE: 0}
        self._has_unsent = False

    @property
    def row_count(self) -> int:
        """The number of net changes that are staged."""
        return sum(self._counts.values())

    @property
    @abstractmethod
    def buffered_bytes(self) -> int:
        """The bytes that wait for `flush`."""

    @abstractmethod
    def flush(self) -> None:
        """Send what is buffered to its place. Errors: `TargetError`; the driver's own."""

    def feed(self, rows: pa.RecordBatch) -> None:
        """Reduce rows of this relation, and keep the net changes of the keys that are complete."""
        self._keep_all(self._reducer.feed(rows))

    def finish(self) -> None:
        """Keep the net change of the last key, too, and send everything."""
        self._keep_all(self._reducer.finish())
        self.flush()

    def staged(self) -> StagedTable:
        return StagedTable(
            relation_id=self._relation.relation_id,
            staging=self.name,
            inserts=self._counts[INSERT],
            updates=self._counts[UPDATE],
            deletes=self._counts[DELETE],
            has_unsent=self._has_unsent,
        )

    @abstractmethod
    def _keep(self, changes: NetChanges) -> None:
        """Buffer net changes, at least one, or send them."""

    def _keep_all(self, found: Iterator[NetChanges]) -> None:
        for changes in found:
            if len(changes.values):
                self._keep(changes)

    def _count(self, changes: NetChanges) -> None:
        self._has_unsent |= changes.unsent is not None
        for operation in self._counts:
            self._counts[operation] += changes.count(operation)


Load = TypeVar("Load", bound=RelationLoad)


class RelationLoads(Generic[Load]):
    """The loads of an attempt, one for each relation whose rows came; `begin` makes it. Not thread-safe, used once."""

    def __init__(self, relations: Sequence[Relation], begin: Callable[[Relation], Load]) -> None:
        self._relations: Mapping[int, Relation] = {relation.relation_id: relation for relation in relations}
        self._begin = begin
        self._loads: dict[int, Load] = {}

    @property
    def names(self) -> list[str]:
        """The places that may hold something."""
        return [load.name for load in self._loads.values()]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Stage the rows of a unit; return their number. Errors: `LogError`; those of `Reducer` and of the loads."""
        row_count = 0
        for batch in batches:
            row_count += batch.num_rows
            for relation_id, rows in _by_relation(batch):
                self._load_of(relation_id).feed(rows)
            self._bound_memory()
        for load in self._loads.values():
            load.finish()
        return row_count

    def staged(self) -> tuple[StagedTable, ...]:
        """The staging of each relation that has any."""
        return tuple(load.staged() for load in self._loads.values() if load.row_count)

    def _load_of(self, relation_id: int) -> Load:
        if relation_id not in self._loads:
            relation = self._relations.get(relation_id)
            if relation is None:
                raise LogError(f"rows of relation {relation_id}, which the unit does not define")
            self._loads[relation_id] = self._begin(relation)
        return self._loads[relation_id]

    def _bound_memory(self) -> None:
        while sum(load.buffered_bytes for load in self._loads.values()) > _BUFFERED_BYTES:
            max(self._loads.values(), key=lambda load: load.buffered_bytes).flush()


def _by_relation(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each relation, in the order they have; without a copy when there is only one."""
    if batch.num_rows == 0:
        return
    batch = _normal(batch)
    column = batch.column("relation_id")
    found = pc.unique(column).to_pylist()
    if len(found) == 1:
        yield found[0], batch
        return
    for relation_id in found:
        yield relation_id, batch.filter(pc.equal(column, relation_id))


def _normal(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark may send wide strings: the log's own type, without a copy where it is that."""
    for name in ("key", "values", "unsent"):
        column = batch.column(name)
        if column.type != pa.string():
            batch = batch.set_column(batch.schema.get_field_index(name), name, column.cast(pa.string()))
    return batch

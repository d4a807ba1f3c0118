"""Load a unit's rows into staging tables: what one attempt of one Spark task does with its rows.

An attempt's tables are its own, so nobody sees what it has not acknowledged. Rows are reduced to net changes as they
stream through, so memory holds a few megabytes of each relation's text and one open key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from airflow_parallel_apply.pipeline.errors import LogError, OwnershipLost, ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask
from airflow_parallel_apply.pipeline.target.mariadb.address import Address
from airflow_parallel_apply.pipeline.target.mariadb.naming import StagingOwner, claim_tag, staging_table
from airflow_parallel_apply.pipeline.target.mariadb.positions import is_held
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import drop_staging
from airflow_parallel_apply.pipeline.target.mariadb.table_load import TableLoad

_BUFFERED_BYTES: Final = 32 * 2**20
"""Bytes of all relations' text that are held together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDbLoader:
    """See `Loader`."""

    address: Address = field(repr=False)
    unit: Unit
    relations: tuple[Relation, ...]

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        del task
        return _Attempt(self, attempt).load(batches)


class _Attempt:
    """Not thread-safe, used once."""

    def __init__(self, loader: MariaDbLoader, attempt: str) -> None:
        self._unit = loader.unit
        self._name = attempt
        self._relations = {relation.relation_id: relation for relation in loader.relations}
        self._session = Session(loader.address, pipeline=loader.unit.pipeline)
        self._loads: dict[int, TableLoad] = {}

    def load(self, batches: Iterable[pa.RecordBatch]) -> Loaded:
        unit = self._unit
        try:
            with self._session.errors("stage", channel=unit.channel):
                # First known, then looked: who takes the claim over ends this session, or is seen here.
                self._session.become(unit.channel, unit.token, group=unit.group)
                self._require_claim()
                row_count = self._stage(batches)
        except Unavailable:
            self._require_claim()
            self._drop()
            raise
        except ParallelApplyError:
            self._drop()
            raise
        finally:
            self._session.close()
        tables = tuple(load.staged() for load in self._loads.values() if load.row_count)
        return Loaded(tables=tables, row_count=row_count)

    def _require_claim(self) -> None:
        """Errors: `OwnershipLost` where a newer claim ended this one; the driver's own."""
        if not is_held(self._session, self._unit):
            raise OwnershipLost(
                "a newer claim took the channel", op="stage", pipeline=self._unit.pipeline, channel=self._unit.channel
            )

    def _drop(self) -> None:
        """Leave nothing behind, if the server can be reached; else whoever takes the channel drops it."""
        with suppress(pymysql.MySQLError):
            drop_staging(self._session, [load.name for load in self._loads.values()])

    def _stage(self, batches: Iterable[pa.RecordBatch]) -> int:
        row_count = 0
        for batch in batches:
            row_count += batch.num_rows
            for relation_id, rows in _by_relation(batch):
                self._load_of(relation_id).feed(rows)
            self._bound_memory()
        for load in self._loads.values():
            load.finish()
        return row_count

    def _load_of(self, relation_id: int) -> TableLoad:
        if relation_id not in self._loads:
            relation = self._relations.get(relation_id)
            if relation is None:
                raise LogError(f"rows of relation {relation_id}, which the unit does not define")
            unit = self._unit
            owner = StagingOwner(
                generation=unit.generation, channel=unit.channel, claim=claim_tag(unit.token), group=unit.group
            )
            name = staging_table(unit.pipeline, owner, self._name, relation_id)
            self._loads[relation_id] = TableLoad(self._session, relation, name)
        return self._loads[relation_id]

    def _bound_memory(self) -> None:
        while sum(load.buffered_bytes for load in self._loads.values()) > _BUFFERED_BYTES:
            max(self._loads.values(), key=lambda load: load.buffered_bytes).flush()


def _by_relation(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each relation, in the order they have; without a copy when there is only one."""
    if batch.num_rows == 0:
        return
    for name in ("key", "values", "unsent"):
        column = batch.column(name)
        if column.type != pa.string():
            # Spark may send wide strings.
            batch = batch.set_column(batch.schema.get_field_index(name), name, column.cast(pa.string()))
    column = batch.column("relation_id")
    for relation_id in pc.unique(column).to_pylist():
        rows = batch.filter(pc.equal(column, relation_id))
        yield relation_id, rows

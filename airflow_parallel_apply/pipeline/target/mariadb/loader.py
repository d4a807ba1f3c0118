"""Load a unit's rows into staging tables: what one attempt of one Spark task does with its rows.

An attempt's tables are its own, so nobody sees what it has not acknowledged. Rows are reduced to net changes as they
stream through, so memory holds a few megabytes of each relation's text and one open key.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pymysql

from airflow_parallel_apply.pipeline.apply.relation_load import RelationLoads
from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask
from airflow_parallel_apply.pipeline.target.mariadb.address import Address
from airflow_parallel_apply.pipeline.target.mariadb.naming import StagingOwner, claim_tag, staging_table
from airflow_parallel_apply.pipeline.target.mariadb.positions import is_held
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import drop_staging
from airflow_parallel_apply.pipeline.target.mariadb.table_load import TableLoad


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
        self._session = Session(loader.address, pipeline=loader.unit.pipeline)
        self._loads = RelationLoads(loader.relations, self._begin)

    def load(self, batches: Iterable[pa.RecordBatch]) -> Loaded:
        unit = self._unit
        try:
            with self._session.errors("stage", channel=unit.channel):
                # First known, then looked: who takes the claim over ends this session, or is seen here.
                self._session.become(unit.channel, unit.token, group=unit.group)
                self._require_claim()
                row_count = self._loads.stage(batches)
        except Unavailable:
            self._require_claim()
            self._drop()
            raise
        except ParallelApplyError:
            self._drop()
            raise
        finally:
            self._session.close()
        return Loaded(tables=self._loads.staged(), row_count=row_count)

    def _require_claim(self) -> None:
        """Errors: `OwnershipLost` where a newer claim ended this one; the driver's own."""
        if not is_held(self._session, self._unit):
            raise OwnershipLost(
                "a newer claim took the channel", op="stage", pipeline=self._unit.pipeline, channel=self._unit.channel
            )

    def _drop(self) -> None:
        """Leave nothing behind, if the server can be reached; else whoever takes the channel drops it."""
        with suppress(pymysql.MySQLError):
            drop_staging(self._session, self._loads.names)

    def _begin(self, relation: Relation) -> TableLoad:
        unit = self._unit
        owner = StagingOwner(
            generation=unit.generation, channel=unit.channel, claim=claim_tag(unit.token), group=unit.group
        )
        name = staging_table(unit.pipeline, owner, self._name, relation.relation_id)
        return TableLoad(self._session, relation, name)

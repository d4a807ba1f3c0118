"""Staging without Spark, for tests of what lies around it: the same loader, fed by this process."""

from __future__ import annotations

from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.config import Endpoint, StoreName
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.epoch import Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.pipeline.target.open import target_connector

_attempts = count()


class LocalStage:
    """Reads the unit's rows, filters as Spark does, sorts, loads."""

    def __init__(self, log_url: str, target: Endpoint) -> None:
        self._log = open_reader(log_url)
        self._target = target

    def stage(self, unit: Unit) -> StagedUnit:
        batches = list(self._log.rows(unit.after_seqno, unit.last_seqno))
        rows = pa.Table.from_batches(batches, schema=ROWS)
        rows = rows.filter(pc.is_in(rows.column("operation"), pa.array(["I", "U", "D", "K", "X"])))
        channel = self._channels(rows, unit)
        # By row: the seqno that its channel has committed before the unit.
        after = np.array([unit.after(number) for number in range(unit.channels)])[np.maximum(channel, 0)]
        wanted = rows.column("seqno").to_numpy() > after
        if unit.channel is not None:
            wanted &= channel == unit.channel
        rows, after = rows.filter(pa.array(wanted)), after[wanted]
        if isinstance(unit.kind, Serial) and unit.kind.first_fragno is not None:
            rows = rows.filter(pc.greater_equal(rows.column("fragno"), unit.kind.first_fragno))
        if isinstance(unit.kind, Serial) and unit.kind.last_fragno is not None:
            rows = rows.filter(pc.less_equal(rows.column("fragno"), unit.kind.last_fragno))
        if rows.num_rows != unit.row_count:
            raise LogError(f"the unit has {rows.num_rows} rows, its plan says {unit.row_count}")
        if not isinstance(unit.kind, Serial):
            before = pc.less_equal(rows.column("previous_seqno"), pa.array(after))
            rows = rows.filter(pc.or_(before, pc.greater(rows.column("next_seqno"), unit.last_seqno)))
        unordered = open_store(StoreName.LOG, self._log, unit).branch(unit).unordered
        if unordered:
            doubtful = pc.is_in(rows.column("relation_id"), pa.array(unordered, pa.int32()))
            place = rows.schema.get_field_index("key_order")
            rows = rows.set_column(place, "key_order", pc.if_else(doubtful, 0, rows.column("key_order")))
        order = ["key_order", "relation_id", "key", "seqno", "fragno"]
        rows = rows.sort_by([(name, "ascending") for name in order])
        loader = target_connector(self._target).loader(self._target, unit, self._log.state().relations)
        loaded = loader.load(rows.to_batches(max_chunksize=1000), f"local{next(_attempts)}")
        return StagedUnit(unit=unit, tables=loaded.tables, row_count=unit.row_count, seconds=0.0)

    def _channels(self, rows: pa.Table, unit: Unit) -> np.ndarray:
        """By the partitioner's own notation for Arrow, as the planner has it; a row that runs alone is in none."""
        partitioner = open_partitioner(unit.routing or Routing(channels=unit.channels))
        relations = {relation.relation_id: relation for relation in self._log.state().relations}
        (batch,) = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=ROWS)]
        return np.asarray(partitioner.place(batch, relations).channels)

    def cancel(self) -> None:
        """Stages run in one piece; the sessions' end interrupts them."""

    def close(self) -> None:
        """Holds nothing."""
